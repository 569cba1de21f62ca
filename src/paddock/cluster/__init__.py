"""Replicas on a Ray cluster: each model is a Ray Serve application, and one more application serves HTTP for all.

Only this package imports Ray. Serve configurations name `paddock.cluster:pool` and `paddock.cluster:gateway` as
`import_path`.
"""

from paddock.cluster.applications import gateway_application as gateway
from paddock.cluster.applications import model_application as pool

__all__ = ["gateway", "pool"]
