"""`paddock stop`: unload a model of a running server."""

from __future__ import annotations

import click

from paddock.cli.chat.server import configured_server


@click.command("stop")
@click.argument("name")
@click.option("--url", metavar="URL", help="The server. [PADDOCK_URL, or the settings' host and port]")
@click.option("--api-key", metavar="KEY", help="An admin key of it. [PADDOCK_API_KEY]")
def command(name: str, url: str | None, api_key: str | None) -> None:
    """Unload the model NAME, or `all` of them, after their running requests. The next request loads it again."""
    unloaded = configured_server(url, api_key).unload(name)
    click.echo(f"Unloaded {', '.join(unloaded)}." if unloaded else f"{name} is not loaded.")
