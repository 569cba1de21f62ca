"""The GPUs that libllama can compute on, and their memory."""

from __future__ import annotations

import ctypes

import msgspec

# What is asked here is ggml's, and not bound. Looked up here it is found wherever libllama itself was.
from llama_cpp.llama_cpp import _lib as libllama

from paddock.engine import library

# ggml's numbers. One that uses the host's memory is used by libllama only where there is none of the other kind.
_GPU, _INTEGRATED_GPU = 1, 2


class Gpu(msgspec.Struct, frozen=True):
    name: str
    free: int
    total: int


def gpus() -> list[Gpu]:
    library.start(verbose=False)
    libllama.ggml_backend_dev_count.restype = ctypes.c_size_t
    libllama.ggml_backend_dev_get.restype = ctypes.c_void_p
    devices = [
        ctypes.c_void_p(libllama.ggml_backend_dev_get(ctypes.c_size_t(index)))
        for index in range(libllama.ggml_backend_dev_count())
    ]
    kinds = [int(libllama.ggml_backend_dev_type(device)) for device in devices]
    wanted = _GPU if _GPU in kinds else _INTEGRATED_GPU
    return [_gpu(device) for device, kind in zip(devices, kinds, strict=True) if kind == wanted]


def _gpu(device: ctypes.c_void_p) -> Gpu:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    libllama.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    libllama.ggml_backend_dev_name.restype = ctypes.c_char_p
    return Gpu(libllama.ggml_backend_dev_name(device).decode("utf-8", "replace"), free.value, total.value)
