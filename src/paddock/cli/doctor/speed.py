"""Is something set that makes answers slow, or keeps memory?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paddock.cli.doctor.finding import Finding

if TYPE_CHECKING:
    from paddock.config import ModelManagerSettings

_ABOUT = "speed"


def check_speed(settings: ModelManagerSettings, cores: int) -> Iterator[Finding]:
    if settings.n_threads > cores:
        yield Finding(
            "warning",
            _ABOUT,
            f"n_threads is {settings.n_threads}, but there are {cores} cores: threads wait for each other",
            f"set n_threads to {cores}, or leave it out",
        )
    if settings.is_deterministic:
        yield Finding(
            "ok",
            _ABOUT,
            "answers are deterministic: prompts are computed in chunks of 128 tokens, and reused in whole chunks",
            "set deterministic to false for speed",
        )
    elif not settings.cont_batching:
        yield Finding(
            "warning",
            _ABOUT,
            "continuous batching is off: requests wait for each other",
            "set cont_batching to true; same bytes for the same seed come from `deterministic`",
        )
    if settings.flash_attn == "off":
        yield Finding(
            "warning",
            _ABOUT,
            "flash attention is off: long contexts are slower and take more memory",
            'set flash_attn to "auto"',
        )
    if settings.idle_timeout == 0:
        yield Finding(
            "warning",
            "memory",
            "models stay in memory until another needs the room: idle_timeout is 0",
            "set idle_timeout to some seconds, or unload them: POST /admin/unload",
        )
    else:
        first = [name for name, model in settings.models.items() if model.preload or model.pinned]
        single = settings.model is not None or not (settings.models_directory or settings.models)
        if not first and single and not settings.lazy:
            first = ["the model"]
        told = f"{', '.join(first)} when the server starts, others" if first else "each model"
        yield Finding(
            "ok",
            _ABOUT,
            f"loaded: {told} at the first request, which therefore takes longer; "
            f"unloaded after {settings.idle_timeout:g} s without one",
            "`preload` under model_manager.models loads one at the start, `pinned` keeps it",
        )
