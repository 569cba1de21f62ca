"""An operator's hands on a cluster: connect to it, deploy what has changed, look, and take it away."""

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

from paddock.cluster.applications import digest_of, gateway, placed, pool, portable, served
from paddock.cluster.names import ENGINE, GATEWAY, application_of, ours
from paddock.config import Settings
from paddock.errors import StartupError

_LOOK = 10.0
"""Seconds that a running application has to say what it was deployed with."""


@dataclass(frozen=True, slots=True)
class Done:
    application: str
    what: str


@contextmanager
def cluster(address: str | None, *, local: bool = False) -> Iterator[None]:
    """Connected to the cluster there, or to a new one on this machine for as long as that."""
    # Whoever reaches its ports may run anything. A local cluster listens on loopback, and Ray makes a token for it that
    # other users of this machine do not have.
    where: dict[str, Any] = (
        {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        if local
        else {"address": address or "auto"}
    )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # what is done is told by whoever does it
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise StartupError(
            f"no connection to a Ray cluster at {address or 'hand'} ({reason}). Start one with `ray start --head`, or "
            "use --local; a cluster that asks for a token needs RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN here"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def deploy(settings: Settings) -> Iterator[Done]:
    """Every model that is new or has changed, then the gateways; last, models that are not served any more go."""
    catalogue = served(settings)
    name = settings.cluster.name
    server = settings.server
    serve.start(http_options={"host": server.host, "port": server.port}, proxy_location=_proxies(settings))
    arguments = {"settings": portable(settings)}
    wanted = {application_of(name, model.name): model for model in catalogue if model.clustered}
    for application, model in wanted.items():
        if _deployed(application, ENGINE) == digest_of(settings, model):
            yield Done(application, "unchanged")
            continue
        if lacking := placed(settings, model).misfit(_nodes()):
            yield Done(application, f"waits for a node that has {lacking} for a replica")
        _run(pool(arguments | {"model": model.name}), application, None)
        yield Done(application, "deployed")
    if _deployed(name, GATEWAY) == digest_of(settings):
        yield Done(name, "unchanged")
    else:
        _run(gateway(arguments), name, "/")
        yield Done(name, "deployed")
    for application in _ours(settings):
        if application != name and application not in wanted:
            serve.delete(application)
            yield Done(application, "deleted")


def status(settings: Settings) -> dict[str, Any]:
    """By application, in a form that JSON has."""
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
    """What Ray's own `serve deploy` and KubeRay are told: each application by where its builder is."""
    catalogue, name = served(settings), settings.cluster.name
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
        raise StartupError(f"{name} could not be deployed: {message.strip().splitlines()[-1]}") from None


def _nodes() -> list[dict[str, float]]:
    """What each of them has, taken or not."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _proxies(settings: Settings) -> str:
    """By Ray's names for it."""
    return {"every_node": "EveryNode", "head_only": "HeadOnly"}[settings.cluster.proxies]


def _ours(settings: Settings) -> list[str]:
    return ours(settings.cluster.name, {name: set(at.deployments) for name, at in serve.status().applications.items()})


def _deployed(application: str, deployment: str) -> str:
    """The digest of what is deployed there and runs; empty where that is not known."""
    found = serve.status().applications.get(application)
    if found is None or found.status.value != "RUNNING":
        return ""
    handle = serve.get_deployment_handle(deployment, app_name=application)
    try:
        digest: str = handle.digest.remote().result(timeout_s=_LOOK)
    except (RayError, RayServeException, TimeoutError):
        return ""
    return digest
