"""`paddock cache`: what is cached, by model and tenant, and how it is cleared."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.cli.chat.server import Server, configured_server
from paddock.cli.common import json_option, size

if TYPE_CHECKING:
    from paddock.disk_cache import Kept

_COLUMNS = ("MODEL", "STATE", "TENANT", "CELLS", "HOST", "DISK")
_NO_TENANT = "-"
_url = click.option("--url", metavar="URL", help="The server. [PADDOCK_URL, or the settings' host and port]")
_api_key = click.option("--api-key", metavar="KEY", help="An admin key of it. [PADDOCK_API_KEY]")


@click.group("cache", invoke_without_command=True)
@_url
@_api_key
@json_option
@click.pass_context
def command(context: click.Context, url: str | None, api_key: str | None, as_json: bool) -> None:
    """List the prompt prefixes that are cached, by model and tenant, in tokens and bytes.

    CELLS is the context of a loaded model, HOST is `cache_ram`, DISK is `cache_disk`; a token may be in several. A
    running server is asked, which loads no model. Without one the folders of `cache_disk` are read.
    """
    if context.invoked_subcommand is not None:
        return
    server = _running(url, api_key)
    kept = _kept_on_disk() if server is None else server.cache()
    _print(kept, as_json=as_json)


@command.command("clear")
@click.option("--model", metavar="NAME", help="Of this model only. Without a server: the name of its file.")
@click.option("--tenant", metavar="NAME", help=f"Of this tenant only; {_NO_TENANT}: keys without a tenant.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_url
@_api_key
@json_option
def clear(
    model: str | None, tenant: str | None, yes: bool, url: str | None, api_key: str | None, as_json: bool
) -> None:
    """Drop what is cached and not in use: in cells, in host memory and on disk. Prints what is left."""
    server = _running(url, api_key)
    if not yes:
        whose = " and ".join(
            words for words in (model and f"model {model}", tenant and f"tenant {tenant}") if words is not None
        )
        click.confirm(f"Clear the cache of {whose or 'all models and tenants'}?", abort=True, err=True)
    owner = "" if tenant == _NO_TENANT else tenant
    if server is not None:
        kept = server.clear_cache(model, owner)
    else:
        _clear_on_disk(model, owner)
        kept = _kept_on_disk()
    _print(kept, as_json=as_json)


def _running(url: str | None, api_key: str | None) -> Server | None:
    """The server, or None if none runs and the folders can be read instead."""
    server = configured_server(url, api_key)
    if server.is_running():
        return server
    if url is not None:
        raise click.ClickException(f"no server answers at {server.url}")
    return None


def _folders() -> list[Path]:
    from paddock.config import load_settings

    folders = load_settings().model_manager.cache_folders
    if not folders:
        raise click.ClickException("no server runs, and the settings have no cache_disk (--cache-disk)")
    return [folder for folder in folders if folder.is_dir()]


def _kept_on_disk() -> dict[str, Any]:
    """In the shape of `GET /admin/cache`."""
    models: dict[str, list[dict[str, Any]]] = {}
    nothing = {"tokens": 0, "bytes": 0}
    rows = _rows()
    names = _names(rows)
    for _, row in rows:
        disk = {"tokens": row.tokens, "bytes": row.bytes}
        tenant = {"tenant": row.tenant or "", "cells": nothing, "host": nothing, "disk": disk}
        models.setdefault(names[row.model or row.key], []).append(tenant)
    return {
        "models": [{"model": name, "state": "unloaded", "tenants": tenants} for name, tenants in sorted(models.items())]
    }


def _clear_on_disk(model: str | None, tenant: str | None) -> None:
    from paddock import disk_cache

    paths: set[str] | None = None
    if model is not None:
        wanted = {model, f"{model.removesuffix('.gguf')}.gguf"}
        paths = {path for path, name in _names(_rows()).items() if name in wanted}
    for folder in _folders():
        _reading(folder, partial(disk_cache.clear, str(folder), models=paths, tenant=tenant))


def _rows() -> list[tuple[Path, Kept]]:
    from paddock import disk_cache

    return [(folder, row) for folder in _folders() for row in _reading(folder, partial(disk_cache.kept, str(folder)))]


def _names(rows: list[tuple[Path, Kept]]) -> dict[str, str]:
    """Path of a model → the name under which it is shown and cleared."""
    from paddock import disk_cache

    return disk_cache.short_names(row.model or row.key for _, row in rows)


def _reading(folder: Path, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}") from None


def _print(kept: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(kept, indent=2))
        return
    rows = [_COLUMNS]
    for model in kept["models"]:
        for tenant in model["tenants"] or [None]:
            tiers = (
                ("", "", "") if tenant is None else tuple(_amount(tenant[tier]) for tier in ("cells", "host", "disk"))
            )
            owner = "" if tenant is None else tenant["tenant"] or _NO_TENANT
            rows.append((model["model"], model["state"], owner, *tiers))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _amount(amount: dict[str, int]) -> str:
    if not amount["tokens"]:
        return "0"
    return f"{amount['tokens']:,} ({size(amount['bytes'])})" if amount["bytes"] else f"{amount['tokens']:,}"
