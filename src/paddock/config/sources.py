"""Reads settings from a file and from the environment, as dotted keys."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paddock.config.problems import nearest
from paddock.config.settings import container_of, known_keys, scalar_types
from paddock.errors import SettingsError

ENV_PREFIX = "PADDOCK_"
ENV_NESTING = "__"
# Variables with our prefix that are not settings.
_ENV_OTHER = frozenset(
    {
        *(
            "PADDOCK_API_KEY",
            "PADDOCK_CHECK_CACHE",
            "PADDOCK_CONFIG",
            "PADDOCK_DEVICE_SELECTION",
            "PADDOCK_LIBLLAMA",
            "PADDOCK_LLAMA_SERVER",
            "PADDOCK_RPC_SERVER",
            "PADDOCK_TEST_LIBRARY",
            "PADDOCK_TEST_MODELS",
        ),
        "PADDOCK_URL",
    }
)


_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Source:
    """One place that settings come from."""

    kind: Literal["file", "dotenv", "environment", "flag"]
    where: str
    """Its name in error messages."""


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"), object_pairs_hook=_unique_keys(str(file)))
    except FileNotFoundError:
        raise SettingsError(f"the configuration file {file} does not exist") from None
    except OSError as error:
        raise SettingsError(f"cannot read the configuration file {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file} is not UTF-8 text: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise SettingsError(f"{file}, line {error.lineno}, column {error.colno}: {error.msg}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{file} must hold a JSON object, not a {type(content).__name__}")
    return content


def _unique_keys(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Refuse repeated keys. Python's parser would silently drop the first value."""

    def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise SettingsError(f"{where} has {name!r} twice in one object")
        return dict(pairs)

    return to_object


def flatten(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects → dotted keys, one level deep: a value of a section is not flattened."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if prefix == "" and isinstance(value, dict) and value:
            flat.update(flatten(value, f"{key}."))
        else:
            flat[prefix + key] = value
    return flat


def variable_of(key: str) -> str:
    """`server.port` → `PADDOCK_SERVER__PORT`."""
    return ENV_PREFIX + key.upper().replace(".", ENV_NESTING)


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """`PADDOCK_SERVER__PORT=9000` → `server.port`, a number.

    A list is separated by commas (put a value with a comma in double quotes) or is JSON. An object is JSON.
    """
    found: dict[str, Any] = {}
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX) or name in _ENV_OTHER:
            continue
        key = name.removeprefix(ENV_PREFIX).lower().replace(ENV_NESTING, ".")
        if key not in known_keys():
            variables = [variable_of(known) for known in known_keys()]
            raise SettingsError(f"unknown setting {name} in the environment{nearest(name, variables)}")
        kind = container_of(key)
        if kind is None:
            found[key] = scalar(value, scalar_types(key))
        elif kind == "list" and not value.lstrip().startswith("["):
            found[key] = next(csv.reader([value])) or [""]
        else:
            try:
                found[key] = json.loads(value, object_pairs_hook=_unique_keys(name))
            except json.JSONDecodeError as error:
                raise SettingsError(f"{name} is not a JSON {kind}: {error.msg}, column {error.colno}") from None
    return found


def scalar(text: str, types: frozenset[type]) -> Any:
    """The text as a boolean or number if the setting has such a type, else the text."""
    word = text.strip()
    if bool in types and word.lower() in _TRUE | _FALSE:
        return word.lower() in _TRUE
    if int in types and re.fullmatch(r"[+-]?[0-9]{1,18}", word):
        return int(word)
    if float in types:
        try:
            return float(word)
        except ValueError:
            return text
    return text
