"""Buffers for copies to and from a GPU."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from paddock.engine import host_buffer
from paddock.engine.libllama import lib


def test_a_host_buffer_is_freed_with_the_last_array_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    # The CPU's buffers have the same interface as the host buffers of a GPU.
    cpu = lib.ggml_backend_dev_buffer_type(lib.ggml_backend_dev_by_type(0))
    monkeypatch.setattr(host_buffer, "_host_buffer_type", lambda: cpu)
    free = lib.ggml_backend_buffer_free

    def count(buffer: int) -> None:
        freed.append(buffer)
        free(buffer)

    monkeypatch.setattr(lib, "ggml_backend_buffer_free", count)
    buffer = host_buffer.new_buffer(1 << 20, on_gpu=True)
    assert buffer.dtype == np.uint8
    assert buffer.shape == (1 << 20,)
    buffer[:] = 7
    part = buffer[-10:]
    del buffer
    gc.collect()
    assert part.tolist() == [7] * 10
    assert not freed
    del part
    gc.collect()
    assert len(freed) == 1


@pytest.mark.parametrize("on_gpu", [False, True])
def test_without_a_gpu_it_is_ordinary_memory(on_gpu: bool) -> None:
    for size in (0, 100, 3 << 20):
        buffer = host_buffer.new_buffer(size, on_gpu=on_gpu)
        assert len(buffer) == size
        buffer[:] = 1
