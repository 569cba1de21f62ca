"""Tries a library: whether it computes correctly, and how fast it is with a model."""

from __future__ import annotations

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
from paddock.types import Span

_PROMPT, _STEPS = 96, 8
# As many tokens as keep one round short on a slow CPU, and enough that a clock's resolution does not matter.
_SPEED_PROMPT, _SPEED_STEPS, _WARM_UP = 384, 48, 16


class Speed(msgspec.Struct, frozen=True):
    """Tokens per second."""

    prompt: float
    stream: float


class _Loaded:
    """A model and a context with the library's default parameters."""

    def __init__(self, path: Path, *, n_ctx: int, threads: int | None = None, on_gpu: bool = False) -> None:
        library.start(verbose=False)
        params = lib.llama_model_default_params()
        params.n_gpu_layers = -1 if on_gpu else 0
        self._model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise library.load_failure(f"cannot load {path.name}")
        self.n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model)))
        context = lib.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = n_ctx
        if threads is not None:
            context.n_threads = context.n_threads_batch = threads
        self._context: Any = lib.llama_init_from_model(self._model, context)
        if not self._context:
            raise library.load_failure(f"cannot create a context of {n_ctx} tokens")
        self._batch = Batch(n_ctx)

    def logits(self, tokens: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        """Decode the tokens. Returns a row for each."""
        self._decode(Span(0, start, list(tokens), targets=[0] * len(tokens)))
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

    def forget(self) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)


def wrong_answer(*, on_gpu: bool) -> str | None:
    """Let the tiny model count in a prompt and in single steps. Says what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counting.gguf"
        write_counting_model(path)
        loaded = _Loaded(path, n_ctx=N_CTX, on_gpu=on_gpu)
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


def speed(path: Path, *, threads: int | None = None, on_gpu: bool = False) -> Speed:
    """How fast the library processes a prompt and generates one stream. Sampling is not part of it."""
    loaded = _Loaded(path, n_ctx=_SPEED_PROMPT + _SPEED_STEPS, threads=threads, on_gpu=on_gpu)
    tokens = [1 + 31 * index % (loaded.n_vocab - 1) for index in range(_SPEED_PROMPT + _SPEED_STEPS)]
    loaded.seconds(tokens[:_WARM_UP], 0)
    loaded.forget()
    prompt = loaded.seconds(tokens[:_SPEED_PROMPT], 0)
    steps = [loaded.seconds([tokens[at]], at) for at in range(_SPEED_PROMPT, len(tokens))]
    # The median, since other programs delay some steps.
    return Speed(_SPEED_PROMPT / prompt, 1 / float(np.median(steps)))
