"""`paddock import`: serves the models of another server in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from paddock.cli.common import config_file
from paddock.errors import StartupError


@click.group("import")
def command() -> None:
    """Serve the models of another server in place."""


@command.command()
@click.argument("store", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration file (JSON) that gets the models; it is created if it does not exist. [paddock.json]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
def ollama(store: Path | None, config: Path | None, dry_run: bool) -> None:
    """Add the models of an Ollama store to a configuration. Their files are served where they are; nothing is copied.

    DIR is the store. [OLLAMA_MODELS, else ~/.ollama/models]

    Parameters become defaults of the models, and num_ctx and other options for loading become settings. System prompts
    and messages apply in Ollama's API (/api/...). Go templates are not run: the template in the GGUF file is used.
    """
    from paddock.config import load_settings
    from paddock.gateway import CreatedModels, default_store, import_store
    from paddock.storage import default_folder

    store = store or default_store()
    if not (store / "manifests").is_dir():
        raise StartupError(f"{store} is no Ollama store: it has no folder manifests")
    file = config_file(config) or Path("paddock.json")
    content = _content(file)
    imported = import_store(store)
    for note in imported.notes:
        click.echo(note, err=True)
    if not imported.models:
        raise StartupError(f"{store} has no model that can be served")
    models = _models(content, file)
    for name, entry in imported.models.items():
        if name in models and models[name].get("path") != entry["path"]:
            click.echo(f"{name} is left as it is: {file} has another model of that name", err=True)
            imported.created.pop(name, None)
            continue
        models[name] = models.get(name, {}) | entry
        click.echo(f"{name}  {entry['path']}")
    if dry_run:
        return
    _write(file, content)
    settings = load_settings(file=file)
    if imported.created:
        created = CreatedModels(settings.server.data_dir or default_folder())
        created.change(lambda known: known.update(imported.created))
    click.echo(f"Written to {file}. Serve them with: paddock serve --config {file} --ollama-port 11434", err=True)


def _content(file: Path) -> dict[str, Any]:
    from paddock.config.sources import read_json

    return read_json(file) if file.exists() else {}


def _models(content: dict[str, Any], file: Path) -> dict[str, Any]:
    section = content.setdefault("model_manager", {})
    models = section.setdefault("models", {}) if isinstance(section, dict) else None
    if not isinstance(models, dict) or not all(isinstance(entry, dict) for entry in models.values()):
        raise StartupError(f"{file}: model_manager.models must be an object of objects")
    return models


def _write(file: Path, content: dict[str, Any]) -> None:
    """Atomically: an interrupted command leaves the file as it was."""
    part = file.with_name(f".{file.name}.part")
    try:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
        if file.exists():
            part.chmod(file.stat().st_mode)
        part.replace(file)
    except OSError as error:
        raise StartupError(f"cannot write {file}: {error.strerror}") from None
