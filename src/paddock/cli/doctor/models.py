"""Checks of the models: their files, the memory they take, and settings that make them slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from paddock.cli.common import size
from paddock.cli.doctor.finding import Finding, check_folder
from paddock.config import ModelSettings
from paddock.errors import ModelNotFound, StartupError
from paddock.fleet import open_catalogue
from paddock.fleet.memory.machine import room_in_control_group

if TYPE_CHECKING:
    from paddock.config import ModelManagerSettings
    from paddock.fleet import Catalogue, Model
    from paddock.fleet.process.native import Build

_LARGE_CACHE = 1 << 30
_SMALLER = (
    "a smaller context (n_ctx), fewer parallel requests (parallel), cache_type_k and cache_type_v q8_0, or a model "
    "with fewer bits"
)


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that one model takes."""

    name: str
    host: int
    gpu: int = 0
    weights: int = 0
    cache: int = 0
    stays: bool = False
    """It is never unloaded."""


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of the machine, and how much of it is free."""

    total: int
    free: int
    gpu: int | None = None
    """Free on all GPUs; None without a GPU."""
    limit: int | None = None
    """`memory_limit`."""


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_files(catalogue: Catalogue) -> Iterator[Finding]:
    for note in catalogue.notes:
        yield Finding("warning", "models", note, "`paddock models` lists the models that are served")
    if not len(catalogue):
        cure = "put models there, or download one: paddock pull OWNER/NAME"
        yield Finding("warning", "models", "the models directory has no .gguf file", cure)
    valid = 0
    for model in catalogue:
        problem = model.problem()
        if problem is None:
            valid += 1
            continue
        cure = f"download {model.path or 'its file'} again (paddock pull), or move it away"
        yield Finding("problem", "models", f"{model.name} cannot be loaded: {problem}", cure)
    if valid:
        yield Finding("ok", "models", f"{valid} {'model' if valid == 1 else 'models'} can be served")


def check_default(catalogue: Catalogue, default: str | None) -> Iterator[Finding]:
    if default is None:
        return
    try:
        catalogue.find(default)
    except ModelNotFound as error:
        cure = "names are case-sensitive, without the folder, .gguf is optional: `paddock models` lists them"
        yield Finding("problem", "models", f"default_model: {error.message}", cure)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_memory(needs: list[Need], room: Room) -> Iterator[Finding]:
    most = min(room.total, room.limit) if room.limit is not None else room.total
    for need in needs:
        about = f"{need.name} takes {size(need.host)}"
        if need.host > most:
            limit = "memory_limit allows" if most == room.limit else "this machine has"
            yield Finding("problem", "memory", f"{about}, but {limit} {size(most)}", _SMALLER)
        elif need.host > room.free:
            cure = "stop other programs, or unload other models: POST /admin/unload"
            yield Finding("warning", "memory", f"{about}, but only {size(room.free)} are free now", cure)
        if room.gpu is not None and need.gpu > room.gpu:
            text = f"{need.name} takes {size(need.gpu)} on the GPU, which has {size(room.gpu)} free"
            cure = 'put fewer layers there: n_gpu_layers as a number, or "auto" for as many as fit'
            yield Finding("warning", "memory", text, cure)
        if need.cache > max(need.weights, _LARGE_CACHE):
            text = f"the context of {need.name} takes {size(need.cache)}, more than its weights ({size(need.weights)})"
            yield Finding("warning", "context", text, "a smaller n_ctx is also faster; or cache types of q8_0")
    staying = [need for need in needs if need.stays]
    together = sum(need.host for need in staying)
    if len(staying) > 1 and together > most:
        text = f"models that are never unloaded take {size(together)} together, of {size(most)}"
        yield Finding("problem", "memory", text, "pin fewer of them, or make them smaller")
    if needs and all(need.host <= room.free for need in needs):
        largest = max(needs, key=lambda need: need.host)
        text = f"{size(room.free)} are free; the largest model, {largest.name}, takes {size(largest.host)}"
        yield Finding("ok", "memory", text)


def check_context(name: str, longest: int | None, trained: int | None) -> Iterator[Finding]:
    """`longest` is the configured context of one request; None if it is not configured."""
    if longest is not None and trained and longest > trained:
        text = f"n_ctx gives {longest} tokens to a request, but {name} was trained for {trained}"
        cure = "set n_ctx to 0 for the trained length: a longer context takes memory and has no use"
        yield Finding("warning", "context", text, cure)


# ── speed ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_speed(settings: ModelManagerSettings, cores: int) -> Iterator[Finding]:
    if settings.n_threads > cores:
        text = f"n_threads is {settings.n_threads}, but there are {cores} cores: threads wait for each other"
        yield Finding("warning", "speed", text, f"set n_threads to {cores}, or remove it")
    if settings.is_deterministic:
        text = "answers are deterministic: prompts are computed and reused in chunks of 128 tokens"
        yield Finding("ok", "speed", text, "set deterministic to false for speed")
    elif not settings.cont_batching:
        cure = "set cont_batching to true; for the same bytes with the same seed set `deterministic`"
        yield Finding("warning", "speed", "continuous batching is off: requests run one after another", cure)
    if settings.flash_attn == "off":
        text = "flash attention is off: long contexts are slower and take more memory"
        yield Finding("warning", "speed", text, 'set flash_attn to "auto"')
    if settings.idle_timeout == 0:
        text = "idle_timeout is 0: a model stays in memory until another one needs the memory"
        cure = "set idle_timeout to a number of seconds, or unload models: POST /admin/unload"
        yield Finding("warning", "memory", text, cure)
        return
    early = [*settings.preload, *(name for name, model in settings.models.items() if model.preload or model.pinned)]
    is_single = settings.model is not None or not (settings.models_directory or settings.models)
    if not early and is_single and not settings.lazy:
        early = ["the model"]
    loaded = f"{', '.join(early)} when the server starts, others" if early else "each model"
    text = f"loaded: {loaded} at the first request, which then takes longer; unloaded after {settings.idle_timeout:g} s"
    cure = "`preload` under model_manager.models loads one at the start, `pinned` keeps it"
    yield Finding("ok", "speed", f"{text} without a request", cure)


# ── collecting ───────────────────────────────────────────────────────────────────────────────────────────────────────


def room_for_models(settings: ModelManagerSettings, build: Build) -> Room:
    memory, group = psutil.virtual_memory(), room_in_control_group()
    free = memory.available if group is None else min(memory.available, group)
    return Room(memory.total, free, sum(gpu.free for gpu in build.gpus) if build.gpus else None, settings.memory_limit)


def examine_models(settings: ModelManagerSettings, room: Room) -> Iterator[Finding]:
    if settings.models_directory is not None and settings.model is None:
        found = check_folder(settings.models_directory, "the models directory", "models")
        yield found
        if found.level == "problem":
            return
    try:
        catalogue = open_catalogue(settings.model_copy(update={"default_model": None}))
    except StartupError as error:
        yield Finding("problem", "models", error.message, "correct model_manager, or the file that it names")
        return
    yield from check_files(catalogue)
    yield from check_default(catalogue, settings.default_model)
    yield from check_memory([need for model in catalogue if (need := _need(model, gpu=room.gpu is not None))], room)
    for model in catalogue:
        if model.kind() == "generation":
            yield from check_context(model.name, _longest(model), _trained(model))


def _trained(model: Model) -> int | None:
    """The longest context of the model, with scaled positions; None if unknown."""
    trained = model.description().n_ctx_train
    return None if trained is None else model.options.longest_context(trained)


def _longest(model: Model) -> int | None:
    """The most tokens of one request; None if n_ctx is the default."""
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
        stays=model.settings.pinned,
    )
