"""LoRA adapters, which libllama frees with their model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib

from paddock.engine import library
from paddock.types import Adapters


class LoadedAdapters:
    def __init__(self, model: Any, paths: Sequence[str]) -> None:
        self._pointers = [_load(model, path) for path in paths]

    @property
    def all(self) -> Adapters:
        return tuple((number, 1.0) for number in range(len(self._pointers)))

    def apply(self, context: Any, adapters: Adapters) -> None:
        """Make exactly these adapters active in the context."""
        count = len(adapters)
        pointers = (lib.llama_adapter_lora_p_ctypes * count)(*(self._pointers[number] for number, _ in adapters))
        scales = (ctypes.c_float * count)(*(scale for _, scale in adapters))
        lib.llama_set_adapters_lora(context, pointers, count, scales)


def _load(model: Any, path: str) -> Any:
    pointer = lib.llama_adapter_lora_init(model, path.encode())
    if not pointer:
        raise library.load_failure(f"cannot load the adapter {path}")
    return pointer
