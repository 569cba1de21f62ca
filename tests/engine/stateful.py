"""Models with windowed or recurrent layers, and prompts for them that share a long beginning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.engine.checkpoint_memory import CheckpointMemory
from paddock.scheduling import Request
from paddock.scheduling.radix_tree import common_prefix
from tests.engine.harness import Harness

KINDS = ["sliding_window", "recurrent", "hybrid"]
SYSTEM = "You keep the paddock. " + " ".join(f"Horse {n} eats {n % 7} apples." for n in range(12))
QUESTIONS = [
    "Who eats most of them all?",
    "And which horse eats none?",
    "Name the horses by hunger.",
    "Then say who may have more.",
]
PROMPTS = [f"{SYSTEM} {question}" for question in QUESTIONS]


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """As with a libllama whose partial states have another format: states are copied as a whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointMemory, "probe", lambda *_: None)
        yield


def precise_harness(path: Path, **options: Any) -> Harness:
    # Without rounding to half precision a step of another shape gives the same text.
    return Harness(path, flash_attn="off", cache_type_k="f32", cache_type_v="f32", **options)


def common_prompt(request: Request, other: Request) -> int:
    return common_prefix(request.tokens[: request.prompt_size], other.tokens[: other.prompt_size])
