"""The names of applications and deployments."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from paddock.fleet import Catalogue

ENGINE = "engine"
"""The deployment of a model's application."""
GATEWAY = "gateway"
"""The deployment of the gateways' application."""


def application_of(cluster: str, model: str) -> str:
    """The name of a model's application, unique for each model name."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", model)
    mark = "" if plain == model else f"-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
    return f"{cluster}-{plain}{mark}"


def ours(cluster: str, applications: Mapping[str, Collection[str]]) -> list[str]:
    """The applications of this configuration, among those of the cluster with their deployments. A deploy must not
    touch the others. A new application has no deployments yet.
    """
    return [
        name
        for name, deployments in applications.items()
        if (name == cluster and set(deployments) <= {GATEWAY})
        or (name.startswith(f"{cluster}-") and set(deployments) <= {ENGINE})
    ]


def on_cluster(catalogue: Catalogue) -> Catalogue:
    """The catalogue with all models on the cluster, except those that other servers serve."""
    return catalogue.map_models(lambda model: model if model.is_remote else replace(model, clustered=True))
