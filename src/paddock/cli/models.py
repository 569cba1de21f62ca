"""`paddock models`: lists the models that would be served, without loading them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.cli.common import config_option, short_number, size

if TYPE_CHECKING:
    from paddock.fleet import Model

_COLUMNS = ("NAME", "ARCHITECTURE", "PARAMETERS", "QUANTISATION", "CONTEXT", "SIZE", "MEMORY", "PREFIXES")
_WORDS = 2  # the first two columns are words, aligned left; the others are numbers, aligned right

_NO_LIMIT = 1 << 60


@click.command("models")
@click.option("--models-dir", metavar="DIR", help="List every .gguf file below this directory.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all fields and sizes in bytes.")
def command(models_dir: str | None, config: Path | None, as_json: bool) -> None:
    """List the models that `paddock serve` would serve with the same settings.

    MEMORY is the memory of weights, context, compute buffers and the process. PREFIXES is the most memory for cached
    prompt prefixes besides; all models share it (`cache_ram`), within `memory_limit`. A model that cannot be loaded is
    listed with the reason.
    """
    from paddock.config import load_settings
    from paddock.fleet import has_gpu, open_catalogue

    flags = {"model_manager.models_directory": models_dir} if models_dir is not None else {}
    catalogue = open_catalogue(load_settings(file=config, flags=flags).model_manager)
    for note in catalogue.notes:
        click.echo(f"paddock: {note}", err=True)
    models, gpu = sorted(catalogue, key=lambda model: model.name), has_gpu()
    if as_json:
        click.echo(json.dumps([_fields(model, gpu=gpu) for model in models], indent=2))
    else:
        click.echo(_table([_row(model, gpu=gpu) for model in models]))


def _fields(model: Model, *, gpu: bool) -> dict[str, Any]:
    described, memory = model.description(), model.estimate(gpu=gpu)
    return {
        "name": model.name,
        "aliases": model.aliases,
        "path": model.path,
        "projectors": model.projectors,
        "kind": model.kind(),
        "architecture": described.architecture,
        "parameters": described.n_params,
        "quantization": described.quantization,
        "context": described.n_ctx_train,
        "size": described.size,
        "memory": None if memory is None else asdict(memory),
        "placement": _placement(model),
        "problem": model.problem(),
    }


def _placement(model: Model) -> dict[str, Any]:
    """As configured; `fitted` are the parts that are chosen when the model is loaded."""
    names = ("n_gpu_layers", "tensor_split", "split_mode", "main_gpu", "device", "tensor_overrides", "kv_offload")
    parts = ("layers", "experts", "draft_layers", "context")
    fitted = [part for part in parts if getattr(model.freedom, part)] if model.freedom.is_any else []
    return {name: getattr(model.options, name) for name in names} | {"fitted": fitted}


def _row(model: Model, *, gpu: bool) -> tuple[str, ...]:
    """A cell for each column, or the name and the problem."""
    if (problem := model.problem()) is not None:
        return model.name, f"cannot be loaded: {problem}"
    described, memory = model.description(), model.estimate(gpu=gpu)
    return (
        model.name,
        described.architecture or "",
        "" if described.n_params is None else short_number(described.n_params, 1000, ("", "K", "M", "B", "T")),
        described.quantization or "",
        "" if described.n_ctx_train is None else str(described.n_ctx_train),
        "" if described.size is None else size(described.size),
        "" if memory is None else size(memory.total + memory.process),
        "" if memory is None else "no limit" if memory.prefixes >= _NO_LIMIT else size(memory.prefixes),
    )


def _table(models: list[tuple[str, ...]]) -> str:
    rows = [_COLUMNS, *models]
    widths = [max(len(row[column]) for row in rows if len(row) > 2) for column in range(len(_COLUMNS))]
    widths[0] = max(len(row[0]) for row in rows)
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    if len(row) == 2:
        return f"{row[0]:<{widths[0]}}  {row[1]}"
    words = [f"{cell:<{width}}" for cell, width in zip(row[:_WORDS], widths, strict=False)]
    numbers = [f"{cell:>{width}}" for cell, width in zip(row[_WORDS:], widths[_WORDS:], strict=True)]
    return "  ".join((*words, *numbers)).rstrip()
