"""docs/reference/configuration.md: every setting, from the classes of the configuration."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from paddock.cli.options import flags_of_settings
from paddock.config import (
    ClusterSettings,
    KeySettings,
    McpServer,
    ModelManagerSettings,
    ModelSettings,
    NamedModel,
    PlacementSettings,
    ReplicaSettings,
    ServerSettings,
    variable_of,
)
from paddock.config.fields import GpuLayers, Section, Size

_HEADER = """\
# Configuration

Every setting. (This page is generated from the code: `make docs`.)

Settings come from these sources. A later source overrides an earlier one:

1. the default,
2. the JSON file (`--config FILE`, or `PADDOCK_CONFIG`),
3. the file `.env` in the working directory,
4. the environment,
5. flags.

An unknown key is an error that names the nearest known key. `paddock config show` prints every setting with its value
and its source, and `paddock config check` only checks the configuration. Both take the flags of `paddock serve`.

- **In the file** values have the type of the table: `"port": "8080"` and `"port": true` are errors. A size is a number
  of bytes or a text such as `"8GiB"`, `"512M"` or `"50%"` (of the machine's memory). Paths may begin with `~`.
- **In the environment** every value is text: `PADDOCK_SERVER__PORT=9000`, `PADDOCK_SERVER__METRICS=false`. A list is
  separated by commas (`PADDOCK_SERVER__API_KEYS=one,two`; put a value with a comma in double quotes) or is JSON. An
  object is JSON.
- **Flags** are those of `paddock serve` ([flags.md](flags.md)). A flag for a list is repeatable.
"""
# Title, key of the section, class, introduction. Only the settings of sections at the top have flags and variables.
_TABLES: list[tuple[str, str, type[Section], str]] = [
    ("`server`", "server", ServerSettings, ""),
    (
        "`server.keys`",
        "server.keys.NAME",
        KeySettings,
        "One object for each key, by name. The variable is `PADDOCK_SERVER__KEYS`, with JSON.",
    ),
    (
        "`server.mcp_servers`",
        "server.mcp_servers.NAME",
        McpServer,
        "One object for each server, by name. The variable is `PADDOCK_SERVER__MCP_SERVERS`, with JSON.",
    ),
    ("`model_manager`: which models", "model_manager", ModelManagerSettings, ""),
    (
        "`model_manager`: settings of models",
        "model_manager",
        ModelSettings,
        "These apply to all models. Each can be set for one model, under `model_manager.models.NAME`.",
    ),
    (
        "`model_manager.models`",
        "model_manager.models.NAME",
        NamedModel,
        "One object for each model, by name, with these and all settings of models. The variable is "
        "`PADDOCK_MODEL_MANAGER__MODELS`, with JSON.",
    ),
    (
        "`replicas` of a model",
        "model_manager.models.NAME.replicas.NAME",
        ReplicaSettings,
        "`devices`, `n_threads` and `n_gpu_layers` are for a local worker; the others are for a remote server.",
    ),
    ("`cluster` of a model", "model_manager.models.NAME.cluster", PlacementSettings, ""),
    ("`cluster`", "cluster", ClusterSettings, ""),
]


def page() -> str:
    return _HEADER + "".join(_table(*table) for table in _TABLES)


def _table(title: str, prefix: str, section: type[Section], about: str) -> str:
    derived = issubclass(section, ModelSettings) and section is not ModelSettings
    inherited = set(ModelSettings.model_fields) if derived else set()
    top = "." not in prefix
    head = "| key | type | default | flag | variable | |\n|---|---|---|---|---|---|\n"
    short = "| key | type | default | |\n|---|---|---|---|\n"
    rows = ""
    for name, field in section.model_fields.items():
        if name in inherited:
            continue
        cells = [f"`{name}`", _type(field), _default(field)]
        if top:
            flags = flags_of_settings().get(f"{prefix}.{name}", [])
            cells += [" ".join(f"`{flag}`" for flag in flags), f"`{variable_of(f'{prefix}.{name}')}`"]
        rows += "| " + " | ".join([*cells, _description(field)]) + " |\n"
    intro = f"{inspect.cleandoc(section.__doc__ or '')} {about}".strip()
    return f"\n## {title}\n\n{intro}\n\n{head if top else short}{rows}"


def _description(field: FieldInfo) -> str:
    assert field.description, "a setting has its description below it"
    return " ".join(field.description.split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "from the machine"
    if field.default is None:
        return "none"
    if isinstance(field.default, Section):
        return "`{}`"
    return f"`{json.dumps(field.default)}`"


def _type(field: FieldInfo) -> str:
    # pydantic moves what `Annotated` says besides the type into the field's metadata.
    if field.metadata and any(item in field.metadata for item in get_args(GpuLayers)[1:]):
        return "integer ≥ -1, or `auto`"
    bounds = _bounds([*field.metadata, *_inner_metadata(field.annotation)])
    name = _type_name(field.annotation)
    return name if name in {"size", "object"} else name + bounds


def _inner_metadata(annotation: Any) -> list[Any]:
    return [item for inner in get_args(annotation) if hasattr(inner, "__metadata__") for item in inner.__metadata__]


def _bounds(metadata: list[Any]) -> str:
    flat = [part for item in metadata for part in (getattr(item, "metadata", None) or [item])]
    signs = {annotated_types.Ge: ("≥", "ge"), annotated_types.Gt: (">", "gt"), annotated_types.Le: ("≤", "le")}
    found = [f"{signs[type(item)][0]} {getattr(item, signs[type(item)][1]):g}" for item in flat if type(item) in signs]
    return f" {', '.join(found)}" if found else ""


def _type_name(annotation: Any) -> str:
    if annotation == Size or any(item in get_args(Size)[1:] for item in getattr(annotation, "__metadata__", ())):
        return "size"
    if hasattr(annotation, "__metadata__"):
        return _type_name(annotation.__origin__)
    names = {int: "integer", float: "number", bool: "boolean", str: "text", Path: "path"}
    if annotation in names:
        return names[annotation]
    origin, inner = get_origin(annotation), [item for item in get_args(annotation) if item is not type(None)]
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inner)
    if origin is list:
        return "list of " + {"path": "paths"}.get(_type_name(inner[0]), "text")
    if origin is dict:
        return "object"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "object"
    return " or ".join(_type_name(item) for item in inner)
