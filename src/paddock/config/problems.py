"""Error messages about settings: one line that names the key and its source."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from paddock.config.fields import Section
from paddock.config.mcp import McpServer
from paddock.config.models import NamedModel, ReplicaSettings
from paddock.config.server import KeySettings
from paddock.config.settings import Settings, known_keys


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or an empty text if no known name is similar."""
    match = difflib.get_close_matches(name, [*known], n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""


def explain(problem: Any, origin: Mapping[str, str]) -> str:
    path = problem["loc"]
    key = ".".join(map(str, path))
    where = origin.get(key) or origin.get(".".join(key.split(".")[:2])) or origin.get(key.split(".")[0])
    if where is None:
        where = next((at for known, at in origin.items() if known.startswith(f"{key}.")), "the settings")
    owner, name, known = _named_part(path) or ("", key, known_keys() if "." in key else [*Settings.model_fields])
    suffix = f" of {owner}" if owner else ""
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {name!r}{suffix} in {where}{nearest(name, known)}"
    # The whole section has all keys in it.
    is_secret = (
        path == ("server",)
        or path[:2] in (("server", "keys"), ("server", "mcp_servers"))
        or "api_key" in key
        or path[3:4] == ("replicas",)
    )
    subject = owner if owner and name not in known else f"{name}{suffix}"
    got = "" if is_secret else f" (got {problem['input']!r})"
    return f"{subject} in {where}: {problem['msg'].removeprefix('Value error, ')}{got}"


def _named_part(path: tuple[str | int, ...]) -> tuple[str, str, list[str]] | None:
    """The model, key or replica that a problem is about, its field (empty if it is not about one), and all fields."""
    schema: type[Section]
    match path:
        case ("model_manager", "models", model, "replicas", replica, *rest):
            owner, schema = f"the replica {replica!r} of the model {model!r}", ReplicaSettings
        case ("model_manager", "models", model, *rest) if len(rest) < 2:
            owner, schema = f"the model {model!r}", NamedModel
        case ("server", "keys", key, *rest) if len(rest) < 2:
            owner, schema = f"the key {key!r}", KeySettings
        case ("server", "mcp_servers", server, "headers", *_):
            return f"the MCP server {server!r}", "headers", [*McpServer.model_fields]
        case ("server", "mcp_servers", server, *rest):
            owner, schema = f"the MCP server {server!r}", McpServer
        case _:
            return None
    return owner, str(rest[0]) if rest else "", [*schema.model_fields]
