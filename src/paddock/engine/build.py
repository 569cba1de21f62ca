"""How libllama was built: what it expects of a CPU, and which GPUs it can use."""

from __future__ import annotations

import llama_cpp.llama_cpp as lib
import msgspec

from paddock.engine import library
from paddock.engine.devices import Gpu, gpus


class Build(msgspec.Struct, frozen=True):
    features: list[str]
    """Names of sets of CPU instructions, as ggml has them, and of ways to compute."""
    gpus: list[Gpu]


def build() -> Build:
    library.start(verbose=False)
    # `CPU : NEON = 1 | DOTPROD = 1 | … | CUDA : ARCHS = 900 | …`: a part for each device, those that are on.
    said = lib.llama_print_system_info().decode("utf-8", "replace")
    parts = (part.rpartition(":")[2].partition("=") for part in said.split("|"))
    return Build([name.strip() for name, _, value in parts if value.strip() == "1"], gpus())
