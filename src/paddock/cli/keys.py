"""`paddock keys`: create API keys, of which the configuration gets only the hashes, and keys that sign receipts."""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from paddock.errors import StartupError


@click.group("keys")
def command() -> None:
    """Create API keys, and keys that sign receipts."""


@command.command("new")
@click.argument("name")
@click.option("--admin", is_flag=True, help="The key may also load and unload models and reload the settings.")
@click.option("--days", type=click.IntRange(min=1), metavar="N", help="The key expires after N days. [never]")
def new(name: str, admin: bool, days: int | None) -> None:
    """Create a key for NAME. It prints the key, and an entry with its hash for the configuration.

    It writes no file. Add the entry to `server` in the configuration and reload it: POST /admin/reload or SIGHUP.
    """
    from paddock.config import checked_name

    try:
        name = checked_name(name)
    except ValueError as error:
        raise StartupError(f"{name!r}: {error}") from None
    key, entry = _new_key(days)
    if admin:
        entry["admin"] = True
    click.echo(f'{key}\n"keys": {json.dumps({name: entry})}')
    click.echo("The first line is the key, the second is the entry for `server` in the configuration.", err=True)


@command.command("rotate")
@click.argument("name")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The configuration file."
)
@click.option(
    "--grace-days",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    metavar="N",
    help="The current key works for N more days.",
)
@click.option("--days", type=click.IntRange(min=1), metavar="N", help="The new key expires after N days. [never]")
def rotate(name: str, config: Path, grace_days: int, days: int | None) -> None:
    """Create a new key for NAME. The current key works until it expires.

    It writes no file. Replace the entry of NAME in `server.keys` with the printed one, reload the configuration (POST
    /admin/reload or SIGHUP), and give the new key to its owner.
    """
    from paddock.config import load_settings
    from paddock.gateway import hashed_keys

    settings = load_settings(file=config).server
    keys = hashed_keys(settings.model_copy(update={"api_keys": [], "api_key_file": None}))
    if name not in keys:
        raise StartupError(f"no key {name!r} in server.keys of {config}; known keys: {', '.join(keys) or 'none'}")
    entry = keys[name].model_dump(mode="json", exclude_unset=True)
    current = {key: entry.pop(key) for key in ("hash", "expires_at") if entry.get(key) is not None}
    until = _from_now(grace_days)
    current["expires_at"] = min(current.get("expires_at", until), until)
    key, new = _new_key(days)
    entry = new | entry | {"previous": [current, *entry.get("previous", [])]}
    click.echo(f'{key}\n"keys": {json.dumps({name: entry})}')
    click.echo(f"The first line is the new key; the old one works until {current['expires_at']}.", err=True)


@command.command("receipt")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--public", is_flag=True, help="Print the public key of an existing FILE. Nothing is written.")
def receipt(file: Path, public: bool) -> None:
    """Create an Ed25519 key for `paddock serve --receipt-key FILE`, and print its public key (PEM).

    FILE can be read by its owner only, and is never overwritten. Give the public key to those who check receipts:
    `paddock verify --public-key`.
    """
    from paddock.receipts import SigningKey

    if public:
        key = SigningKey.load(file)
    else:
        key = SigningKey.new()
        key.save(file)
    click.echo(key.public_pem().decode(), nl=False)


def _new_key(days: int | None) -> tuple[str, dict[str, Any]]:
    key = f"sk-paddock-{secrets.token_urlsafe(32)}"
    entry: dict[str, Any] = {"hash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"}
    if days is not None:
        entry["expires_at"] = _from_now(days)
    return key, entry


def _from_now(days: int) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
