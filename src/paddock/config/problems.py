"""Error messages about settings: one line that names the key and its source."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from paddock.config.fields import Section
from paddock.config.models import NamedModel, ReplicaSettings
from paddock.config.server import KeySettings
from paddock.config.settings import Settings, known_keys


def nearest(name: str, known: Iterator[str] | list[str]) -> str:
    """`; did you mean 'x'?`, or an empty text if no known name is similar."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""


_NAMED: dict[tuple[str, ...], tuple[str, type[Section]]] = {
    ("model_manager", "models"): ("model", NamedModel),
    ("server", "keys"): ("key", KeySettings),
}


def explain(problem: Any, origin: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    where = origin.get(key) or origin.get(".".join(key.split(".")[:2])) or origin.get(key.split(".")[0])
    if where is None:
        where = next((at for known, at in origin.items() if known.startswith(f"{key}.")), "the settings")
    replica = problem["loc"][:2] == ("model_manager", "models") and problem["loc"][3:4] == ("replicas",)
    secret = problem["loc"][:2] == ("server", "keys") or "api_key" in key or replica
    named = _NAMED.get(problem["loc"][:2])
    if replica and len(problem["loc"]) > 4:
        owner = f"the replica {problem['loc'][4]!r} of the model {problem['loc'][2]!r}"
        name = str(problem["loc"][5]) if len(problem["loc"]) > 5 else ""
        key = f"{name} of {owner}" if name in ReplicaSettings.model_fields else owner
        if problem["type"] == "extra_forbidden":
            return f"unknown setting {name!r} of {owner} in {where}{nearest(name, list(ReplicaSettings.model_fields))}"
    elif named is not None and len(problem["loc"]) in (3, 4):
        what, schema = named
        owner, name = f"the {what} {problem['loc'][2]!r}", str(problem["loc"][-1])
        key = f"{name} of {owner}" if len(problem["loc"]) == 4 and name in schema.model_fields else owner
        if problem["type"] == "extra_forbidden":
            return f"unknown setting {name!r} of {owner} in {where}{nearest(name, list(schema.model_fields))}"
    elif problem["type"] == "extra_forbidden":
        known = known_keys() if "." in key else list(Settings.model_fields)
        return f"unknown setting {key!r} in {where}{nearest(key, known)}"
    got = "" if secret else f" (got {problem['input']!r})"
    return f"{key} in {where}: {problem['msg'].removeprefix('Value error, ')}{got}"
