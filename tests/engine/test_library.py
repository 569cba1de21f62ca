from __future__ import annotations

from collections import deque

import pytest

from paddock.engine import library
from paddock.errors import ModelLoadFailed, OutOfMemory


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("alloc_tensor_range: failed to allocate CUDA0 buffer of size 123", OutOfMemory),
        ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", OutOfMemory),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory", OutOfMemory),
        ("llama_model_load: error loading model: mmap failed: Cannot allocate memory", OutOfMemory),
        ("llama_model_load: error loading model: unknown model architecture: 'x'", ModelLoadFailed),
        ("", ModelLoadFailed),
    ],
)
def test_what_libllama_says_tells_why_it_failed(
    monkeypatch: pytest.MonkeyPatch, line: str, kind: type[ModelLoadFailed]
) -> None:
    monkeypatch.setattr(library.log, "errors", deque([line] if line else []))
    error = library.load_failure("cannot load x.gguf")
    assert type(error) is kind
    assert error.message == f"cannot load x.gguf: {line or 'libllama gave no reason'}"
