"""Buffers for copies between host memory and a GPU. A GPU copies several times as fast from and to its host buffers,
because the system never moves their pages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddock.engine.blocks import new_block
from paddock.engine.libllama import lib
from paddock.engine.state import Bytes

# Allocating such a buffer takes longer than the copy if it is large.
_LARGEST_PINNED = 256 << 20
_GPU = 1


class _Pinned:
    """A host buffer of the GPU, as an object that numpy can use. It is freed with the last array that uses it."""

    def __init__(self, buffer: Any, size: int) -> None:
        self._buffer = buffer
        address = int(lib.ggml_backend_buffer_get_base(buffer))
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        lib.ggml_backend_buffer_free(self._buffer)


def new_buffer(size: int, *, on_gpu: bool) -> Bytes:
    """Memory that a GPU can read and write quickly, if it offers such memory."""
    if not size:
        return np.empty(0, np.uint8)
    if on_gpu and size <= _LARGEST_PINNED and (type := _host_buffer_type()):
        buffer = lib.ggml_backend_buft_alloc_buffer(type, size)
        if buffer:
            return np.asarray(_Pinned(buffer, size))
    return np.frombuffer(new_block(size), np.uint8)


def _host_buffer_type() -> Any:
    """None: there is no GPU, or it has no host buffers."""
    device = lib.ggml_backend_dev_by_type(_GPU)
    return lib.ggml_backend_dev_host_buffer_type(device) if device else None
