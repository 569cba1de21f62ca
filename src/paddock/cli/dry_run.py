"""`paddock serve --dry-run`: what becomes of each option, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
from click.core import ParameterSource

from paddock.cli.llama_server import ignored_options, refused_options, spelling
from paddock.cli.options import given_settings, key_of
from paddock.cli.request_defaults import DEFAULTS, PARAMETER


def report(ctx: click.Context) -> str:
    """One line for each option of the command line, and for each variable of llama-server."""
    rows = [("honoured", *row) for row in _honoured(ctx)]
    rows += [("not needed", *row) for row in ignored_options(ctx)]
    rows += [("refused", *row) for row in refused_options(ctx)]
    width = max((len(name) for _, name, _ in rows), default=0)
    return "\n".join(f"{verdict:<10}  {name:<{width}}  {meaning}" for verdict, name, meaning in rows)


def _honoured(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Each given option with the setting that it changes and the value of that setting."""
    settings = given_settings(ctx.params)
    defaults = settings.get("model_manager.defaults", {})
    options = {option.name: option for option in ctx.command.params}
    for name in ctx.params:
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        option = options[name]
        flag = spelling(ctx, [*option.opts, *option.secondary_opts])
        key = key_of(option)
        if name.startswith(PARAMETER):
            field = DEFAULTS[int(name.removeprefix(PARAMETER))].field
            yield flag, f"model_manager.defaults.{field} = {_text(defaults.get(field))}"
        elif key is not None and key in settings:
            yield flag, f"{key} = {'…' if key == 'server.api_keys' else _text(settings[key])}"
        elif key is None and name != "dry_run":
            yield flag, "…" if name == "hf_token" else str(ctx.params[name])


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
