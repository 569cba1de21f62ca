"""What is deployed, and under which names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from paddock.fleet import Catalogue

ENGINE = "engine"
"""The one deployment of a model's application."""
GATEWAY = "gateway"
"""The one deployment of the application that answers HTTP."""


def application_of(cluster: str, model: str) -> str:
    """What a model's application is called; models whose names differ have applications whose names do."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", model)
    mark = "" if plain == model else f"-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
    return f"{cluster}-{plain}{mark}"


def ours(cluster: str, applications: Mapping[str, Collection[str]]) -> list[str]:
    """Those of a cluster's applications, each with its deployments, that are this one's. Others may be there too, which
    a deploy must leave alone. One that is just being made has no deployments yet.
    """
    return [
        name
        for name, deployments in applications.items()
        if (name == cluster and set(deployments) <= {GATEWAY})
        or (name.startswith(f"{cluster}-") and set(deployments) <= {ENGINE})
    ]


def on_cluster(catalogue: Catalogue) -> Catalogue:
    """The same models, but served there; except what is served by other servers anyway."""
    return catalogue.map_models(lambda model: model if model.is_remote else replace(model, clustered=True))
