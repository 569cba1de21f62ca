"""`paddock cluster`: models on Ray Serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from paddock.cli.common import config_option, json_option
from paddock.errors import StartupError

_ADDRESS = click.option(
    "--address", metavar="HOST:PORT", envvar="RAY_ADDRESS", help="A node of the cluster. [the cluster of this machine]"
)


@click.group("cluster")
def command() -> None:
    """Serve models on a Ray cluster: replicas on many nodes behind one address (needs `paddock-llm[cluster]`)."""


@command.command()
@config_option
@_ADDRESS
@click.option("-m", "--model", metavar="FILE", help="Serve only this model.")
@click.option("--host", metavar="ADDRESS", help="The address that the nodes listen on for HTTP. [127.0.0.1]")
@click.option("--port", type=int, metavar="N", help="The port that the nodes listen on. [8080]")
@click.option("--local", is_flag=True, help="Start a cluster on this machine. Ctrl-C stops it.")
def deploy(
    config: Path | None, address: str | None, model: str | None, host: str | None, port: int | None,
    local: bool,
) -> None:  # fmt: skip
    """Deploy the configured models, or update those that changed. A few replicas are replaced at a time."""
    from paddock.config import load_settings

    given = {"model_manager.model": model, "server.host": host, "server.port": port}
    settings = load_settings(file=config, flags={key: value for key, value in given.items() if value is not None})
    operations = _operations()
    with operations.cluster(None if local else address, local=local):
        for done in operations.deploy(settings):
            click.echo(f"{done.application}: {done.what}")
        click.echo(f"Serving on http://{settings.server.host}:{settings.server.port}")
        if local:
            operations.wait_for_interrupt()


@command.command()
@config_option
@_ADDRESS
@json_option
def status(config: Path | None, address: str | None, as_json: bool) -> None:
    """Show the state of the applications and their replicas."""
    from paddock.config import load_settings

    settings = load_settings(file=config)
    operations = _operations()
    with operations.cluster(address):
        found = operations.status(settings)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for application, state in found.items():
        replicas = ", ".join(f"{count} {name.lower()}" for name, count in state["replicas"].items()) or "none"
        click.echo(f"{application}: {state['status'].lower()}; replicas: {replicas}")
        if state["message"]:
            click.echo(f"  {state['message']}")
    if not found:
        click.echo("nothing is deployed")


@command.command()
@config_option
@_ADDRESS
def delete(config: Path | None, address: str | None) -> None:
    """Delete the applications. Running requests finish first."""
    from paddock.config import load_settings

    settings = load_settings(file=config)
    operations = _operations()
    with operations.cluster(address):
        for application in operations.delete(settings):
            click.echo(f"{application}: deleted")


@command.command("config")
@click.argument("config", type=click.Path(path_type=Path, exists=True))
@click.option("--at", metavar="PATH", help="The path of that file on the nodes. [the same path]")
def write_config(config: Path, at: str | None) -> None:
    """Print a Serve configuration for CONFIG: for `serve deploy`, or as serveConfigV2 of a KubeRay RayService."""
    from paddock.config import load_settings

    settings = load_settings(file=config)
    click.echo(json.dumps(_operations().serve_config(settings, at or str(config.absolute())), indent=2))


def _operations() -> Any:
    try:
        from paddock.cluster import operations
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise StartupError("Ray is not installed: pip install 'paddock-llm[cluster]'") from None
    return operations
