"""`paddock models`: lists the models that would be served, without loading them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paddock.errors import StartupError

if TYPE_CHECKING:
    from paddock.fleet import Estimate, Model
    from paddock.types import ModelKind

_COLUMNS = ("NAME", "ARCHITECTURE", "PARAMETERS", "QUANTISATION", "CONTEXT", "SIZE", "MEMORY", "PREFIXES")
_WORDS = 2  # the first two columns are words, aligned left; the others are numbers, aligned right

_NO_LIMIT = 1 << 60
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class _Listed:
    name: str
    aliases: tuple[str, ...]
    path: str
    projectors: tuple[str, ...]
    kind: ModelKind | None
    architecture: str | None
    parameters: int | None
    quantization: str | None
    context: int | None
    size: int | None
    memory: Estimate | None
    problem: str | None


@click.command("models", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--models-dir", metavar="DIR", help="List every .gguf file below this directory.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="The configuration file (JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all fields and sizes in bytes.")
def command(models_dir: str | None, config: Path | None, as_json: bool) -> None:
    """List the models that `paddock serve` would serve with the same settings.

    MEMORY is the memory of weights, context, compute buffers and the process. PREFIXES is the most memory for cached
    prompt prefixes besides; all models share it (`cache_ram`), within `memory_limit`. A model that cannot be loaded is
    listed with the reason.
    """
    from paddock.config import load_settings
    from paddock.fleet import has_gpu, open_catalogue

    try:
        flags = {"model_manager.models_directory": models_dir} if models_dir is not None else {}
        catalogue = open_catalogue(load_settings(file=config, flags=flags).model_manager)
    except StartupError as error:
        click.echo(f"paddock: {error.message}", err=True)
        sys.exit(1)
    for note in catalogue.notes:
        click.echo(f"paddock: {note}", err=True)
    found = [_listed(model, gpu=has_gpu()) for model in sorted(catalogue, key=lambda model: model.name)]
    if as_json:
        click.echo(json.dumps([asdict(model) for model in found], indent=2))
    else:
        click.echo(_table(found))


def _listed(model: Model, *, gpu: bool) -> _Listed:
    described = model.description()
    return _Listed(
        name=model.name,
        aliases=model.aliases,
        path=model.path,
        projectors=model.projectors,
        kind=model.kind(),
        architecture=described.architecture,
        parameters=described.n_params,
        quantization=described.quantization,
        context=described.n_ctx_train,
        size=described.size,
        memory=model.estimate(gpu=gpu),
        problem=model.problem(),
    )


def _table(found: list[_Listed]) -> str:
    rows = [_COLUMNS, *map(_row, found)]
    widths = [max(len(row[column]) for row in rows if len(row) > 2) for column in range(len(_COLUMNS))]
    widths[0] = max(len(row[0]) for row in rows)
    return "\n".join(_line(row, widths) for row in rows)


def _row(model: _Listed) -> tuple[str, ...]:
    if model.problem is not None:
        return model.name, f"cannot be loaded: {model.problem}"
    return (
        model.name,
        model.architecture or "",
        _short(model.parameters, 1000, ("", "K", "M", "B", "T")),
        model.quantization or "",
        "" if model.context is None else str(model.context),
        _short(model.size, 1024, _BYTES),
        "" if model.memory is None else _short(model.memory.total + model.memory.process, 1024, _BYTES),
        "" if model.memory is None else _prefixes(model.memory.prefixes),
    )


def _prefixes(size: int) -> str:
    return "no limit" if size >= _NO_LIMIT else _short(size, 1024, _BYTES)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    if len(row) == 2:
        return f"{row[0]:<{widths[0]}}  {row[1]}"
    words = [f"{cell:<{width}}" for cell, width in zip(row[:_WORDS], widths, strict=False)]
    numbers = [f"{cell:>{width}}" for cell, width in zip(row[_WORDS:], widths[_WORDS:], strict=True)]
    return "  ".join((*words, *numbers)).rstrip()


def _short(value: int | None, step: int, units: tuple[str, ...]) -> str:
    """A short number with its unit: `980 M`, `1.2 GiB`."""
    if value is None:
        return ""
    number, unit = float(value), 0
    while number >= step and unit < len(units) - 1:
        number, unit = number / step, unit + 1
    digits = 0 if unit == 0 or number >= 100 else 1
    return f"{number:.{digits}f} {units[unit]}".strip()
