"""How libllama was built, and the GPUs that it can use."""

from __future__ import annotations

import ctypes

import llama_cpp.llama_cpp as lib
import msgspec

from paddock.engine import library

# ggml's numbers. libllama uses an integrated GPU only if there is no other.
_GPU, _INTEGRATED_GPU = 1, 2


class Gpu(msgspec.Struct, frozen=True):
    name: str
    free: int
    total: int


class Build(msgspec.Struct, frozen=True):
    features: list[str]
    """ggml's names of CPU instruction sets and other build options."""
    gpus: list[Gpu]


def build() -> Build:
    library.start(verbose=False)
    # `CPU : NEON = 1 | DOTPROD = 1 | … | CUDA : ARCHS = 900 | …`: a part for each device, with the active features.
    text = lib.llama_print_system_info().decode("utf-8", "replace")
    parts = (part.rpartition(":")[2].partition("=") for part in text.split("|"))
    return Build([name.strip() for name, _, value in parts if value.strip() == "1"], gpus())


def gpus() -> list[Gpu]:
    library.start(verbose=False)
    ggml = lib._lib  # noqa: SLF001 (these functions are ggml's, which the bindings leave out)
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_name.restype = ctypes.c_char_p
    devices = [
        ctypes.c_void_p(ggml.ggml_backend_dev_get(ctypes.c_size_t(index)))
        for index in range(ggml.ggml_backend_dev_count())
    ]
    kinds = [int(ggml.ggml_backend_dev_type(device)) for device in devices]
    wanted = _GPU if _GPU in kinds else _INTEGRATED_GPU
    found = []
    for device, kind in zip(devices, kinds, strict=True):
        if kind == wanted:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            found.append(Gpu(ggml.ggml_backend_dev_name(device).decode("utf-8", "replace"), free.value, total.value))
    return found
