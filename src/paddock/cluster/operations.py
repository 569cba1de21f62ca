"""The operator's commands: connect to a cluster, deploy changes, show the status, delete."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import AuthenticationError, RayError
from ray.serve.exceptions import RayServeException

from paddock.cluster.applications import (
    cluster_catalogue,
    digest_of,
    gateway_application,
    model_application,
    placement_of,
    portable,
)
from paddock.cluster.names import ENGINE, GATEWAY, application_of, ours
from paddock.config import Settings
from paddock.errors import StartupError

_DIGEST_TIMEOUT = 10.0
"""Seconds that a running application has to return its digest."""


@dataclass(frozen=True, slots=True)
class Action:
    application: str
    what: str


@contextmanager
def cluster(address: str | None, *, local: bool = False) -> Iterator[None]:
    """A connection to the cluster at `address`, or to a temporary one on this machine."""
    # Anyone who reaches Ray's ports can run code. A local cluster listens on loopback only, with a token that other
    # users of this machine do not have.
    where: dict[str, Any] = (
        {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        if local
        else {"address": address or "auto"}
    )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # we report the actions ourselves
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise StartupError(
            f"no connection to a Ray cluster at {address or 'auto'} ({reason}). Start one with `ray start --head`, or "
            "use --local; a cluster with authentication needs RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN here"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def deploy(settings: Settings) -> Iterator[Action]:
    """Deploy new and changed models, then the gateways; then delete models that are no longer served."""
    catalogue = cluster_catalogue(settings)
    name = settings.cluster.name
    server = settings.server
    serve.start(http_options={"host": server.host, "port": server.port}, proxy_location=_proxies(settings))
    arguments = {"settings": portable(settings)}
    wanted = {application_of(name, model.name): model for model in catalogue if model.clustered}
    for application, model in wanted.items():
        if _deployed(application, ENGINE) == digest_of(settings, model):
            yield Action(application, "unchanged")
            continue
        if lacking := placement_of(settings, model).missing_resources(_nodes()):
            yield Action(application, f"waiting for a node with {lacking} for a replica")
        _run(model_application(arguments | {"model": model.name}), application, None)
        yield Action(application, "deployed")
    if _deployed(name, GATEWAY) == digest_of(settings):
        yield Action(name, "unchanged")
    else:
        _run(gateway_application(arguments), name, "/")
        yield Action(name, "deployed")
    for application in _ours(settings):
        if application != name and application not in wanted:
            serve.delete(application)
            yield Action(application, "deleted")


def status(settings: Settings) -> dict[str, Any]:
    """The status of each application, as JSON data."""
    found = serve.status().applications
    return {
        application: {
            "status": str(found[application].status.value),
            "message": found[application].message
            or "; ".join(one.message for one in found[application].deployments.values() if one.message),
            "replicas": {
                str(getattr(state, "value", state)): count
                for deployment in found[application].deployments.values()
                for state, count in deployment.replica_states.items()
            },
        }
        for application in _ours(settings)
    }


def delete(settings: Settings) -> Iterator[str]:
    for application in _ours(settings):
        serve.delete(application)
        yield application


def serve_config(settings: Settings, path: str) -> dict[str, Any]:
    """A configuration for `serve deploy` and KubeRay."""
    catalogue, name = cluster_catalogue(settings), settings.cluster.name
    models = [model for model in catalogue if model.clustered]
    return {
        "proxy_location": _proxies(settings),
        "http_options": {"host": settings.server.host, "port": settings.server.port},
        "applications": [
            {
                "name": name,
                "route_prefix": "/",
                "import_path": "paddock.cluster:gateway",
                "args": {"config": path},
            },
            *(
                {
                    "name": application_of(name, model.name),
                    "route_prefix": None,
                    "import_path": "paddock.cluster:pool",
                    "args": {"config": path, "model": model.name},
                }
                for model in models
            ),
        ],
    }


def wait_for_interrupt() -> None:
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def _run(application: Any, name: str, route: str | None) -> None:
    try:
        serve.run(application, name=name, route_prefix=route)
    except (RayError, RayServeException, RuntimeError) as error:
        message = serve.status().applications[name].message if name in serve.status().applications else str(error)
        raise StartupError(f"cannot deploy {name}: {message.strip().splitlines()[-1]}") from None


def _nodes() -> list[dict[str, float]]:
    """The total resources of each node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _proxies(settings: Settings) -> str:
    """Ray's name of the setting."""
    return {"every_node": "EveryNode", "head_only": "HeadOnly"}[settings.cluster.proxies]


def _ours(settings: Settings) -> list[str]:
    return ours(settings.cluster.name, {name: set(at.deployments) for name, at in serve.status().applications.items()})


def _deployed(application: str, deployment: str) -> str:
    """The digest of the running deployment; empty if unknown."""
    found = serve.status().applications.get(application)
    if found is None or found.status.value != "RUNNING":
        return ""
    handle = serve.get_deployment_handle(deployment, app_name=application)
    try:
        digest: str = handle.digest.remote().result(timeout_s=_DIGEST_TIMEOUT)
    except (RayError, RayServeException, TimeoutError):
        return ""
    return digest
