"""Settings from every source, merged and validated once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dotenv import dotenv_values
from pydantic import ValidationError

from paddock.config.problems import explain
from paddock.config.settings import Settings
from paddock.config.sources import Source, flatten, from_environment, read_json
from paddock.errors import SettingsError


class Loaded(NamedTuple):
    settings: Settings
    sources: Mapping[str, Source]
    """The source of each key (`server.port`). A key with its default value is missing."""


def load_settings(
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    dotenv: Path = Path(".env"),
) -> Settings:
    """As `load_with_sources`, without the sources."""
    return load_with_sources(file=file, flags=flags, environ=environ, dotenv=dotenv).settings


def load_with_sources(
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    dotenv: Path = Path(".env"),
) -> Loaded:
    """Merge every source and validate once. `flags` maps dotted keys (`server.port`) to values.

    Raises `SettingsError` with one line that names the key and its source.
    """
    environ = os.environ if environ is None else environ
    env_file = {key: value for key, value in dotenv_values(dotenv).items() if value is not None}
    file = file or _path(environ.get("PADDOCK_CONFIG") or env_file.get("PADDOCK_CONFIG"))
    merged: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for source, values in (
        (Source("file", str(file)), flatten(read_json(file)) if file else {}),
        (Source("dotenv", str(dotenv)), from_environment(env_file)),
        (Source("environment", "the environment"), from_environment(environ)),
        (Source("flag", "the command line"), dict(flags or {})),
    ):
        for key, value in values.items():
            _put(merged, key, value, source.where)
            sources[key] = source
    try:
        # Strict JSON mode: a text can be a path, but `true` is not a number.
        return Loaded(Settings.model_validate_json(_as_json(merged), strict=True), sources)
    except ValidationError as error:
        origin = {key: source.where for key, source in sources.items()}
        raise SettingsError("; ".join(explain(problem, origin) for problem in error.errors())) from None


def _as_json(merged: dict[str, Any]) -> bytes:
    try:
        return json.dumps(merged, default=str, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SettingsError("a setting has a text that is not valid Unicode") from None


def _put(merged: dict[str, Any], key: str, value: Any, where: str) -> None:
    section, _, name = key.partition(".")
    if not name:
        merged[section] = value
        return
    into = merged.setdefault(section, {})
    if not isinstance(into, dict):
        raise SettingsError(f"{section!r} must be an object, but {where} sets {key!r} in it")
    if name in ("defaults", "mcp_servers") and isinstance(value, dict) and isinstance(into.get(name), dict):
        value = into[name] | value  # request fields, and MCP servers, of several sources are merged, not replaced
    into[name] = value


def _path(value: str | None) -> Path | None:
    return Path(value).expanduser() if value else None
