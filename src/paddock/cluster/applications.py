"""Builds Ray Serve applications from settings: one for each model, and one for the gateways."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import ray
from ray import serve
from ray.serve import Application

from paddock import __version__
from paddock.cluster.engine import Engine
from paddock.cluster.gateway import ClusterGateway
from paddock.cluster.names import ENGINE, GATEWAY, on_cluster
from paddock.cluster.placement import Placement, placement
from paddock.config import Settings, load_settings
from paddock.errors import StartupError
from paddock.fleet import Catalogue, Model, open_catalogue
from paddock.gateway import hashed_keys
from paddock.hosts import is_socket_path

_ROUTER = "paddock.cluster.routing.PrefixRouter"
_STATS_PERIOD = 5.0
"""Seconds between the routing statistics of a replica."""
_DEPTH = 4
"""Requests per slot that a replica may have: enough for its queue to be fair between keys, and few enough that waiting
requests can go to a new replica.
"""
_DEPLOYMENT: dict[str, Any] = {
    "graceful_shutdown_wait_loop_s": 0.5,
    "graceful_shutdown_timeout_s": 600.0,
    "health_check_period_s": 5,
    "health_check_timeout_s": 30,
}
"""A stopping replica has ten minutes to finish its requests."""


def model_application(args: dict[str, Any]) -> Application:
    """The replicas of one model: `import_path: paddock.cluster:pool`, with the arguments `model` and either `config`,
    the path of a configuration file, or `settings`, its content.
    """
    settings = settings_from(args)
    catalogue = cluster_catalogue(settings)
    model = catalogue.named(_required(args, "model"))
    place = placement_of(settings, model)
    data = portable(settings)
    # A replica needs no API keys.
    server = {key: value for key, value in data["server"].items() if key.startswith("log_")}
    for named in data["model_manager"].get("models", {}).values():
        for replica in named.get("replicas", {}).values():
            replica.pop("api_key", None)
    deployment = serve.deployment(
        name=ENGINE,
        ray_actor_options=place.actor_options,
        max_ongoing_requests=_DEPTH * model.options.parallel,
        max_queued_requests=model.options.max_queue,
        **_DEPLOYMENT,
        rolling_update_percentage=settings.cluster.upgrade_percent / 100,
        request_router_config={
            "request_router_class": _ROUTER,
            "request_router_kwargs": {"deterministic": model.options.deterministic},
            "request_routing_stats_period_s": _STATS_PERIOD,
        },
        **place.replicas,
    )(Engine)
    return deployment.bind(data | {"server": server}, model.name, digest_of(settings, model))


def gateway_application(args: dict[str, Any]) -> Application:
    """The gateways: `import_path: paddock.cluster:gateway`, with `config` or `settings`."""
    settings = settings_from(args)
    cluster_catalogue(settings)  # fail now, not later in a replica
    deployment = serve.deployment(
        name=GATEWAY,
        num_replicas=settings.cluster.gateways,
        max_ongoing_requests=settings.server.max_connections,
        # Gateways mostly wait, and must be placed even if replicas have reserved every CPU.
        ray_actor_options={"num_cpus": 0},
        **_DEPLOYMENT,
    )(serve.ingress()(ClusterGateway))
    return deployment.bind(portable(settings), digest_of(settings))


def placement_of(settings: Settings, model: Model) -> Placement:
    wanted = settings.model_manager.settings_for(model.name).cluster
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return placement(model, wanted, has_gpus=bool(resources.get("GPU")))


def cluster_catalogue(settings: Settings) -> Catalogue:
    """The catalogue for the cluster. Raises `StartupError` for settings that a cluster does not support."""
    catalogue = on_cluster(open_catalogue(settings.model_manager))
    for model in catalogue:
        if model.clustered and model.replicas:
            raise StartupError(
                f"model_manager.models.{model.name}: `replicas` is for `paddock serve`; "
                "on a cluster set cluster.min_replicas and cluster.max_replicas"
            )
        if (problem := model.problem()) is not None:
            raise StartupError(f"cannot serve {model.name}: {problem}")
    if settings.server.ssl_cert_file is not None or settings.server.ssl_key_file is not None:
        raise StartupError(
            "server.ssl_cert_file: Ray's proxies support only plain HTTP; terminate TLS in front of them"
        )
    if len(settings.server.hosts) > 1 or is_socket_path(settings.server.host):
        raise StartupError(f"server.host: Ray's proxies listen on one address, not on {settings.server.host}")
    return catalogue


def settings_from(args: dict[str, Any]) -> Settings:
    if "settings" in args:
        return Settings.model_validate(args["settings"])
    return load_settings(file=Path(_required(args, "config")))


def portable(settings: Settings) -> dict[str, Any]:
    """The settings with absolute paths, so that they mean the same on every node."""
    data: dict[str, Any] = settings.model_dump(mode="json", exclude_unset=True)
    manager, server = data.setdefault("model_manager", {}), data.setdefault("server", {})
    _make_absolute(manager, "model", "models_directory", "cache_disk")
    _make_absolute(server, "slot_save_path")
    _hide_keys(settings, server)
    for named in manager.get("models", {}).values():
        _make_absolute(named, "cache_disk")
    if "models_directory" not in manager:
        for named in manager.get("models", {}).values():
            _make_absolute(named, "path", "model_draft", "chat_template_file")
    return data


def _make_absolute(section: dict[str, Any], *keys: str) -> None:
    for key in keys:
        if section.get(key) and not section[key].startswith("fake:"):
            section[key] = str(Path(section[key]).absolute())


def _hide_keys(settings: Settings, server: dict[str, Any]) -> None:
    """Replace keys by their hashes: Ray shows what is deployed in its store, logs and dashboard. The key file is read
    here and need not exist on the nodes.
    """
    keys = hashed_keys(settings.server)
    for name in ("api_keys", "api_key_file", "keys"):
        server.pop(name, None)
    if keys:
        server["keys"] = {name: key.model_dump(mode="json", exclude_unset=True) for name, key in keys.items()}


def digest_of(settings: Settings, model: Model | None = None) -> str:
    """A digest of what is deployed for a model or the gateways: equal if a deploy would change nothing."""
    data = portable(settings)
    if model is not None:
        model_settings = settings.model_manager.settings_for(model.name)
        data = {
            "model": repr(model),
            "cluster": model_settings.cluster.model_dump(mode="json"),
            "upgrade": settings.cluster.upgrade_percent,
        }
    return hashlib.sha256(json.dumps([__version__, data], sort_keys=True).encode()).hexdigest()[:16]


def _required(args: dict[str, Any], name: str) -> str:
    if not isinstance(args.get(name), str):
        raise StartupError(f"the application's args need {name!r}, a string")
    return cast(str, args[name])
