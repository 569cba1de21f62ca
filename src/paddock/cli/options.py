"""The flags of `paddock serve`, made from the settings: `Flag` in the type of a field declares the flags of it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from paddock.cli.request_defaults import PARAMETER, default_options, given_defaults
from paddock.config import BatchSettings, Flag, ModelManagerSettings, ModelSettings, ResponseSettings, ServerSettings
from paddock.config.settings import container_of, scalar_types

_NESTING = "__"
_TOGETHER = {"server.write_timeout": "server.body_timeout"}
"""llama-server's --timeout is for reading and for writing."""


def setting_options() -> list[click.Option]:
    """One option for each `Flag`: first which models to serve, then the settings of models, then the server."""
    manager = ModelManagerSettings.model_fields
    own = {name: field for name, field in manager.items() if name not in ModelSettings.model_fields}
    sections = [
        ("model_manager", own),
        ("model_manager", ModelSettings.model_fields),
        ("server", ServerSettings.model_fields),
        ("batches", BatchSettings.model_fields),
        ("responses", ResponseSettings.model_fields),
    ]
    options = [
        _option(f"{section}.{name}", field, flag, number)
        for section, fields in sections
        for name, field in fields.items()
        for number, flag in enumerate(flag for flag in field.metadata if isinstance(flag, Flag))
    ]
    return [*options, *default_options()]


def key_of(option: click.Parameter) -> str | None:
    """The key of the setting that an option sets: `server.port`. None for other options."""
    name = option.name or ""
    parts = name.split(_NESTING)
    if name.startswith(PARAMETER):
        return "model_manager.defaults"
    return ".".join(parts[:2]) if len(parts) > 1 else None


def flags_of_settings() -> dict[str, list[str]]:
    """All flags of each setting that has any, by its key."""
    found: dict[str, list[str]] = {}
    for option in setting_options():
        found.setdefault(key_of(option) or "", []).extend([*option.opts, *option.secondary_opts])
    return found


def given_settings(params: dict[str, Any]) -> dict[str, Any]:
    """The settings that the command line sets, by key. `params` are click's values of all options, in their order on
    the command line: of several flags for one setting the last one wins.
    """
    given = {
        ".".join(name.split(_NESTING)[:2]): list(value) if isinstance(value, tuple) else value
        for name, value in params.items()
        if _NESTING in name and not name.startswith(PARAMETER) and value is not None and value != ()
    }
    for key, other in _TOGETHER.items():
        if key in given:
            given[other] = given[key]
    defaults = given_defaults(params)
    return given | ({"model_manager.defaults": defaults} if defaults else {})


def _option(key: str, field: FieldInfo, flag: Flag, number: int) -> click.Option:
    """`number` keeps the names of several flags of one setting apart."""
    names = [*flag.names, key.replace(".", _NESTING) + (f"{_NESTING}{number}" if number else "")]
    if flag.value is not None:
        return click.Option(names, flag_value=flag.value, help=f"Set {key} to {flag.value}.")
    shared: dict[str, Any] = {"default": None, "help": _help(field)}
    if container_of(key) == "list":
        return click.Option(
            names, multiple=True, callback=_split_at_commas, metavar=flag.metavar, help=_help(field), **_bare(flag)
        )
    if container_of(key) == "object" and flag.convert is not None:
        callback = _entries(flag.convert)
        return click.Option(names, multiple=True, callback=callback, metavar=flag.metavar, help=_help(field))
    types = scalar_types(key) - {type(None)}
    if bool in types and flag.convert is None:
        return click.Option(names, is_flag=True, **shared)
    if flag.convert is None and (choices := _choices(field.annotation)):
        return click.Option(names, type=click.Choice(choices), **shared)
    if flag.joins:
        return click.Option(names, multiple=True, callback=_joined, metavar=flag.metavar, help=_help(field))
    (only,) = types or {str}
    metavar = flag.metavar or ("N" if only in (int, float) else "FILE")
    if flag.convert is not None:
        return click.Option(names, callback=_converted(flag.convert), metavar=metavar, **_bare(flag), **shared)
    return click.Option(names, type=only if only in (int, float) else str, metavar=metavar, **shared)


def _bare(flag: Flag) -> dict[str, Any]:
    return {"is_flag": False, "flag_value": flag.bare} if flag.bare else {}


def _help(field: FieldInfo) -> str:
    description = " ".join((field.description or "").split())
    default = "on" if field.default is True else field.default
    if isinstance(default, list):
        default = ",".join(default)
    has_default = field.default_factory is None and default not in (None, "", {}) and default is not False
    return f"{description} [{default}]" if has_default else description


def _choices(annotation: Any) -> tuple[str, ...]:
    """The words of a `Literal`, or of a `Literal | None`."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    literals = [inner for inner in get_args(annotation) if get_origin(inner) is Literal]
    return get_args(literals[0]) if len(get_args(annotation)) == 2 and literals else ()


def _split_at_commas(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """As llama-server: a value with a comma stands in double quotes. An empty value is kept, so that it is refused."""
    return tuple(item for row in csv.reader(values) for item in row or [""])


def _joined(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> str | None:
    return ",".join(values) if values else None


def _entries(convert: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], Any]:
    def callback(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> Any:
        try:
            return dict(map(convert, values)) or None
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def _converted(convert: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def callback(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else convert(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback
