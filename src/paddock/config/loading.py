"""Settings from every source, merged and validated once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dotenv import dotenv_values
from pydantic import ValidationError

from paddock.config.problems import explain
from paddock.config.settings import Settings
from paddock.config.sources import flatten, from_environment, read_json
from paddock.errors import SettingsError


def load_settings(
    *,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    dotenv: Path = Path(".env"),
) -> Settings:
    """Merge every source and validate once. `flags` maps dotted keys (`server.port`) to values.

    Raises `SettingsError`, in one line that names the key and where it was set.
    """
    environ = os.environ if environ is None else environ
    env_file = {key: value for key, value in dotenv_values(dotenv).items() if value is not None}
    file = file or _path(environ.get("PADDOCK_CONFIG") or env_file.get("PADDOCK_CONFIG"))
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for where, source in (
        (str(file), flatten(read_json(file)) if file else {}),
        (str(dotenv), from_environment(env_file)),
        ("the environment", from_environment(environ)),
        ("the command line", dict(flags or {})),
    ):
        for key, value in source.items():
            _put(merged, key, value, where)
            origin[key] = where
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsError("; ".join(explain(problem, origin) for problem in error.errors())) from None


def _put(merged: dict[str, Any], key: str, value: Any, where: str) -> None:
    section, _, name = key.partition(".")
    if not name:
        merged[section] = value
        return
    into = merged.setdefault(section, {})
    if not isinstance(into, dict):
        raise SettingsError(f"{section!r} must be an object, but {where} sets {key!r} in it")
    into[name] = value


def _path(value: str | None) -> Path | None:
    return Path(value).expanduser() if value else None
