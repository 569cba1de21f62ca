"""`paddock keys`: make a key that only its owner knows."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys

import click

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group("keys", context_settings=_CONTEXT)
def command() -> None:
    """Make API keys."""


@command.command("new", context_settings=_CONTEXT)
@click.argument("name")
@click.option("--admin", is_flag=True, help="It may also load and unload models, reload the settings …")
def new(name: str, admin: bool) -> None:
    """Make a key for NAME. It is printed once; the configuration gets its hash.

    Nothing is written to any file. Add the entry to `server` in the configuration, beside those of others, and have it
    read by POST /admin/reload or SIGHUP.
    """
    from paddock.config import checked_name

    try:
        name = checked_name(name)
    except ValueError as error:
        click.echo(f"paddock: {name!r}: {error}", err=True)
        sys.exit(1)
    key = f"sk-paddock-{secrets.token_urlsafe(32)}"
    entry: dict[str, str | bool] = {"hash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"}
    if admin:
        entry["admin"] = True
    click.echo(key)
    click.echo(f'"keys": {json.dumps({name: entry})}')
    click.echo("The first line is the key, for its owner; the second is for `server` in the configuration.", err=True)
