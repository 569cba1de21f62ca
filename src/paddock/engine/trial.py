"""Tries a library: whether it computes correctly, and how fast it is with a model."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine import library
from paddock.engine.batch import Batch
from paddock.engine.counting_model import N_CTX, N_VOCAB, write_counting_model
from paddock.engine.libllama import lib
from paddock.engine.loading import check_params
from paddock.types import Span

_PROMPT, _STEPS = 96, 8
_TOLERANCE = 0.02
"""Of logits. Another layout of the same cells may be summed in another order."""
# As many tokens as keep one round short on a slow CPU, and enough that a clock's resolution does not matter.
_SPEED_PROMPT, _SPEED_STEPS, _WARM_UP = 384, 48, 16


class Speed(msgspec.Struct, frozen=True):
    """Tokens per second."""

    prompt: float
    stream: float
    cpu_share: float
    """CPU time of each thread per second. Threads wait for each other actively, so less than one means that other
    programs had the cores.
    """


class _Loaded:
    """A model and a context with the library's default parameters, except for these. `n_ctx` is the context of each
    sequence.
    """

    def __init__(
        self, path: Path, *, n_ctx: int, threads: int | None = None, on_gpu: bool = False, sequences: int = 1,
        unified: bool = False,
    ) -> None:  # fmt: skip
        library.start(verbose=False)
        params = lib.llama_model_default_params()
        params.n_gpu_layers = -1 if on_gpu else 0
        self._model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise library.load_failure(f"cannot load {path.name}")
        self.n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        context = lib.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = n_ctx * sequences, n_ctx, n_ctx
        context.n_seq_max, context.kv_unified = sequences, unified
        if threads is not None:
            context.n_threads = context.n_threads_batch = threads
        self._context: Any = lib.llama_init_from_model(self._model, context)
        if not self._context:
            raise library.load_failure(f"cannot create a context of {n_ctx} tokens")
        check_params(self._context, context)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = Batch(n_ctx)

    def logits(self, tokens: Sequence[int], start: int, sequence: int = 0) -> npt.NDArray[np.float32]:
        """Decode the tokens. Returns a row for each."""
        self._decode(Span(sequence, start, list(tokens), targets=[0] * len(tokens)))
        rows = np.ctypeslib.as_array(lib.llama_get_logits(self._context), shape=(len(tokens), self.n_vocab))
        return np.array(rows)

    def seconds(self, tokens: Sequence[int], start: int) -> float:
        """How long it takes to decode the tokens, with the logits of the last one."""
        begun = time.perf_counter()
        self._decode(Span(0, start, list(tokens), sampler=True))
        return time.perf_counter() - begun

    def _decode(self, span: Span) -> None:
        self._batch.decode(self._context, [span], n_vocab=self.n_vocab)
        lib.llama_synchronize(self._context)

    def copy(self, source: int, target: int) -> None:
        """The whole sequence."""
        lib.llama_memory_seq_rm(self._memory, target, -1, -1)
        lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def drop(self, sequence: int, start: int) -> None:
        """Its tokens from this position on."""
        lib.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def save(self, sequence: int) -> Any:
        size = int(lib.llama_state_seq_get_size_ext(self._context, sequence, 0))
        data = (ctypes.c_uint8 * size)()
        return data if lib.llama_state_seq_get_data_ext(self._context, data, size, sequence, 0) == size else None

    def restore(self, sequence: int, data: Any) -> bool:
        return int(lib.llama_state_seq_set_data_ext(self._context, data, len(data), sequence, 0)) == len(data)

    def forget(self) -> None:
        lib.llama_memory_clear(self._memory, True)

    def free(self) -> None:
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)


def wrong_answer(*, on_gpu: bool) -> str | None:
    """Let the tiny model count, in each layout of the cache. Says what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counting.gguf"
        write_counting_model(path)
        for unified in (False, True):
            loaded = _Loaded(path, n_ctx=N_CTX, on_gpu=on_gpu, sequences=2, unified=unified)
            problem = _wrong_count(loaded) or _wrong_copy(loaded)
            loaded.free()
            if problem is not None:
                return problem
    return None


def _wrong_count(loaded: _Loaded) -> str | None:
    """A prompt, and single steps after it."""
    prompt = [(7 * index) % N_VOCAB for index in range(_PROMPT)]
    asked = [prompt, *([(last * 11) % N_VOCAB] for last in range(_STEPS))]
    start = 0
    for tokens in asked:
        logits = loaded.logits(tokens, start)
        start += len(tokens)
        if not np.isfinite(logits).all():
            return "the logits of a tiny model are not finite numbers"
        for token, answer in zip(tokens, logits.argmax(axis=1).tolist(), strict=True):
            if answer != (token + 1) % N_VOCAB:
                return f"a tiny model that counts says {answer} after {token}"
    return None


def _wrong_copy(loaded: _Loaded) -> str | None:
    """The same step after the same tokens: in the sequence itself, in a copy, and in a restored state."""
    tokens, step, end = (
        [70, 140, 200, 100, 250],
        [17],
        5,
    )  # of other heads than the step, which attends to all of them then
    loaded.forget()
    loaded.logits(tokens, 0)
    loaded.copy(0, 1)
    expected = loaded.logits(step, end)
    if not np.allclose(loaded.logits(step, end, 1), expected, atol=_TOLERANCE):
        return "a tiny model answers differently in a copy of a sequence"
    loaded.drop(0, end)
    state = loaded.save(0)
    loaded.drop(1, 0)
    without = loaded.logits(step, 0, 1)
    loaded.drop(1, 0)
    if state is None or not loaded.restore(1, state):
        return "the state of a sequence cannot be saved and restored"
    if not np.allclose(loaded.logits(step, end, 1), expected, atol=_TOLERANCE):
        return "a tiny model answers differently in a sequence that was restored"
    if np.allclose(without, expected, atol=_TOLERANCE):
        return "a tiny model answers as if there were no tokens before"
    return None


def speed(path: Path, *, threads: int | None = None, on_gpu: bool = False) -> Speed:
    """How fast the library processes a prompt and generates one stream. Sampling is not part of it."""
    loaded = _Loaded(path, n_ctx=_SPEED_PROMPT + _SPEED_STEPS, threads=threads, on_gpu=on_gpu)
    tokens = [1 + 31 * index % (loaded.n_vocab - 1) for index in range(_SPEED_PROMPT + _SPEED_STEPS)]
    loaded.seconds(tokens[:_WARM_UP], 0)
    loaded.forget()
    begun, cpu_begun = time.perf_counter(), time.process_time()
    prompt = loaded.seconds(tokens[:_SPEED_PROMPT], 0)
    steps = [loaded.seconds([tokens[at]], at) for at in range(_SPEED_PROMPT, len(tokens))]
    share = (time.process_time() - cpu_begun) / (time.perf_counter() - begun) / (threads or os.cpu_count() or 1)
    # The median, since other programs delay some steps.
    return Speed(_SPEED_PROMPT / prompt, 1 / float(np.median(steps)), share)
