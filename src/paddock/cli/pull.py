"""`paddock pull`: a model from the Hugging Face hub."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paddock.errors import StartupError


@click.command("pull", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("model", metavar="REPO[@REVISION][:QUANT]")
@click.option("--models-dir", metavar="DIR", help="Put it here. [the configured directory, or a cache folder]")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Configuration file (JSON).")
@click.option("--token", metavar="TOKEN", help="For repositories that want one. [HF_TOKEN]")
def command(model: str, models_dir: str | None, config: Path | None, token: str | None) -> None:
    """Download a GGUF model from the Hugging Face hub (or HF_ENDPOINT) and print where it is.

    QUANT is a quantisation such as Q8_0; Q4_K_M unless given, or else what the repository has. A download that was
    cut off goes on where it ended. REVISION is a commit, a branch or a tag of the repository; with a commit, what is
    pulled is the same for ever. Files are compared with the SHA-256 that the hub tells, also those that are there.
    """
    from paddock.config import load_settings
    from paddock.fleet.catalogue.hub import Source, default_folder, pull

    try:
        flags = {"model_manager.models_directory": models_dir} if models_dir is not None else {}
        folder = load_settings(file=config, flags=flags).model_manager.models_directory or default_folder()
        path = pull(Source.parse(model), folder, token=token, say=lambda line: click.echo(line, err=True))
    except StartupError as error:
        click.echo(f"paddock: {error.message}", err=True)
        sys.exit(1)
    click.echo(path)
