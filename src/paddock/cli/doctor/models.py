"""Are the models there, whole, and small enough?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.cli.doctor.finding import Finding, size
from paddock.config import ModelSettings
from paddock.errors import ModelNotFound, StartupError

if TYPE_CHECKING:
    from paddock.config import ModelManagerSettings
    from paddock.fleet import Catalogue, Model

_LARGE_CACHE = 1 << 30


@dataclass(frozen=True, slots=True)
class Need:
    """What one model takes."""

    name: str
    host: int
    gpu: int = 0
    weights: int = 0
    cache: int = 0
    stays: bool = False
    """From the start and for good."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the machine has, and what of it is free."""

    total: int
    free: int
    gpu: int | None = None
    """Free on all GPUs; None where none is used."""
    limit: int | None = None
    """`memory_limit`, the operator's own."""


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_directory(directory: Path) -> Finding:
    if not directory.is_dir():
        return Finding(
            "problem",
            "models",
            f"the models directory {directory} does not exist",
            "correct model_manager.models_directory, or make it: "
            f"mkdir -p {directory}; a disk that is not mounted looks the same",
        )
    if not os.access(directory, os.R_OK | os.X_OK):
        return Finding(
            "problem",
            "models",
            f"the models directory {directory} cannot be read",
            f"allow it to the user who serves: chmod o+rx {directory}",
        )
    return Finding("ok", "models", f"the models directory is {directory}")


def check_files(catalogue: Catalogue) -> Iterator[Finding]:
    for note in catalogue.notes:
        yield Finding("warning", "models", note, "`paddock models` shows what is served")
    if not len(catalogue):
        yield Finding(
            "warning",
            "models",
            "there is no .gguf file there yet",
            "put models there, or fetch one: paddock pull OWNER/NAME",
        )
    whole = 0
    for model in catalogue:
        problem = model.problem()
        if problem is None:
            whole += 1
            continue
        yield Finding(
            "problem",
            "models",
            f"{model.name} cannot be loaded: {problem}",
            f"get {model.path or 'its file'} again (paddock pull), or move it away",
        )
    if whole:
        yield Finding("ok", "models", f"{whole} {'model' if whole == 1 else 'models'} can be served")


def check_default(catalogue: Catalogue, default: str | None) -> Iterator[Finding]:
    if default is None:
        return
    try:
        catalogue.find(default)
    except ModelNotFound as error:
        yield Finding(
            "problem",
            "models",
            f"default_model: {error.message}",
            "names are case-sensitive, without folder, .gguf optional: `paddock models` lists them",
        )


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_SMALLER = (
    "a smaller context (n_ctx), fewer requests at once (parallel), cache_type_k and cache_type_v q8_0, or a model "
    "with fewer bits"
)


def check_memory(needs: list[Need], room: Room) -> Iterator[Finding]:
    most = min(room.total, room.limit) if room.limit is not None else room.total
    for need in needs:
        about = f"{need.name} takes {size(need.host)}"
        if need.host > most:
            what = "memory_limit allows" if most == room.limit else "this machine has"
            yield Finding("problem", "memory", f"{about}, and {what} {size(most)}", _SMALLER)
        elif need.host > room.free:
            yield Finding(
                "warning",
                "memory",
                f"{about}, and {size(room.free)} are free now",
                "end what else takes memory, or unload other models: POST /admin/unload",
            )
        if room.gpu is not None and need.gpu > room.gpu:
            yield Finding(
                "warning",
                "memory",
                f"{need.name} takes {size(need.gpu)} on the GPU, where {size(room.gpu)} are free",
                'fewer layers there: n_gpu_layers as a number, or "auto" for as many as fit',
            )
        if need.cache > max(need.weights, _LARGE_CACHE):
            yield Finding(
                "warning",
                "context",
                f"the context of {need.name} takes {size(need.cache)}, more than its weights ({size(need.weights)})",
                "a smaller n_ctx is faster too, or cache types of q8_0",
            )
    staying = [need for need in needs if need.stays]
    together = sum(need.host for need in staying)
    if len(staying) > 1 and together > most:
        yield Finding(
            "problem",
            "memory",
            f"models that are never unloaded take {size(together)} together, of {size(most)}",
            "pin fewer of them, or make them smaller",
        )
    if needs and all(need.host <= room.free for need in needs):
        largest = max(needs, key=lambda need: need.host)
        yield Finding(
            "ok", "memory", f"{size(room.free)} are free; the largest model, {largest.name}, takes {size(largest.host)}"
        )


def check_context(name: str, wanted: int | None, trained: int | None) -> Iterator[Finding]:
    """`wanted` is what one request may come to, if somebody said so."""
    if wanted is not None and trained and wanted > trained:
        yield Finding(
            "warning",
            "context",
            f"n_ctx gives {wanted} tokens to a request, but {name} was trained for {trained}",
            "set n_ctx to 0 for the model's own: more takes memory and helps nobody",
        )


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def look_at_models(settings: ModelManagerSettings, room: Room) -> Iterator[Finding]:
    from paddock.fleet import open_catalogue

    if settings.models_directory is not None and settings.model is None:
        found = check_directory(settings.models_directory)
        yield found
        if found.level == "problem":
            return
    try:
        catalogue = open_catalogue(settings.model_copy(update={"default_model": None}))
    except StartupError as error:
        yield Finding("problem", "models", error.message, "correct model_manager, or the file it names")
        return
    yield from check_files(catalogue)
    yield from check_default(catalogue, settings.default_model)
    yield from check_memory([need for model in catalogue if (need := _need(model, gpu=room.gpu is not None))], room)
    for model in catalogue:
        if model.kind() == "generation":
            yield from check_context(model.name, _longest(model), model.description().n_ctx_train)


def _longest(model: Model) -> int | None:
    """The tokens that one request may come to; None where nobody said so."""
    options = model.options
    if options.n_ctx == ModelSettings.model_fields["n_ctx"].default:
        return None
    return options.n_ctx if options.kv_unified else options.n_ctx // options.parallel


def _need(model: Model, *, gpu: bool) -> Need | None:
    found = model.estimate(gpu=gpu)
    if found is None:
        return None
    return Need(
        model.name,
        found.host.total + found.process,
        0 if model.auto_layers else found.device.total,
        weights=found.host.weights + found.device.weights,
        cache=found.host.cache + found.device.cache,
        stays=model.pinned,
    )
