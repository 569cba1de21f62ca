"""Pools on a Ray cluster: each model is a Ray Serve application of its own, and one more answers HTTP for all of them.

Only this package knows Ray. `pool` and `gateway` are what a Serve configuration names as `import_path`.
"""

from paddock.cluster.applications import gateway, pool

__all__ = ["gateway", "pool"]
