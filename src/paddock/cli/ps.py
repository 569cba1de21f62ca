"""`paddock ps`: the models that a running server has loaded."""

from __future__ import annotations

import json

import click

from paddock.cli.chat.server import configured_server
from paddock.cli.common import json_option, size

_COLUMNS = ("NAME", "STATE", "RUNNING", "WAITING", "MEMORY", "LOADED FOR", "UNLOADS IN", "PID")


@click.command("ps")
@click.option("--url", metavar="URL", help="The server. [PADDOCK_URL, or the settings' host and port]")
@click.option("--api-key", metavar="KEY", help="An admin key of it. [PADDOCK_API_KEY]")
@json_option
def command(url: str | None, api_key: str | None, as_json: bool) -> None:
    """List the models that are loaded, their requests and their memory."""
    status = configured_server(url, api_key).status()
    if as_json:
        click.echo(json.dumps(status, indent=2))
        return
    rows = [_COLUMNS]
    for model in status["models"]:
        if model["state"] == "unloaded":
            continue
        left = model["idle_timeout"] - model["idle_for"]
        stays = model["pinned"] or not model["idle_timeout"] or model["running"]
        state = f"{model['state']} {model['progress']:.0%}" if model["state"] == "loading" else model["state"]
        rows.append(
            (
                *(model["name"], state, str(model["running"]), str(model["waiting"])),
                size(sum(model["memory"].values())),
                _duration(model["loaded_for"]),
                "" if stays else _duration(max(left, 0)),
                str(model["pid"] or ""),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
