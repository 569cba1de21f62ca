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
def test_the_error_lines_of_libllama_decide_the_error_class(
    monkeypatch: pytest.MonkeyPatch, line: str, kind: type[ModelLoadFailed]
) -> None:
    monkeypatch.setattr(library.log, "errors", deque([line] if line else []))
    error = library.load_failure("cannot load x.gguf")
    assert type(error) is kind
    assert error.message == f"cannot load x.gguf: {line or 'libllama gave no reason'}"


@pytest.mark.parametrize("verbose", [True, False])
def test_log_lines_are_written_with_their_level(capsys: pytest.CaptureFixture[str], verbose: bool) -> None:
    log = library.NativeLog()
    log.verbose = verbose
    for level, text in (
        (2, b"loading "),
        (5, b"."),
        (5, b"."),
        (3, b"beware\tof\n"),
        (4, b"bro"),
        (5, b"ken\n"),
        (2, b"\n"),
    ):
        log._on_line(level, text, None)
    assert capsys.readouterr().err == ("<7>loading ..\n" if verbose else "") + "<4>beware of\n<3>broken\n"
    assert list(log.errors) == ["broken"]


@pytest.mark.parametrize("verbose", [True, False])
def test_more_shared_cells_than_the_trained_context_are_no_warning(
    capsys: pytest.CaptureFixture[str], verbose: bool
) -> None:
    log = library.NativeLog()
    log.verbose = verbose
    line = "n_ctx_seq (16384) > n_ctx_train (8192) -- possible training context overflow\n"
    log._on_line(3, line.encode(), None)
    assert capsys.readouterr().err == (f"<7>{line}" if verbose else "")
