"""A model that generates computes embeddings in a second context, which is freed when the worker is idle."""

from __future__ import annotations

import tempfile
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from paddock.engine import open_engine, open_pooled_engine
from paddock.scheduling import Job
from paddock.types import PoolRequest, TextPrompt
from paddock.wire.messages import Pooled
from paddock.worker import generation_thread
from paddock.worker.commands import Add
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.generation_thread import GenerationThread
from paddock.worker.pooled_steps import Vectors
from tests.options import engine_options

OPTIONS: dict[str, Any] = {"n_threads": 1, "n_gpu_layers": 0, "n_ctx": 256, "n_batch": 128}


def test_the_vectors_are_those_of_an_embedding_model(tiny_models: dict[str, Path]) -> None:
    path, inputs = str(tiny_models["llama"]), [[1, 5, 9], [1, 7, 3, 2]]
    alone = open_pooled_engine(path, engine_options(pooling="mean", **OPTIONS), lambda _: None)
    engine = open_engine(path, engine_options(**OPTIONS), lambda _: None)
    beside = engine.embeddings()
    expected = alone.pool(inputs)
    for _ in range(2):
        for one, other in zip(beside.pool(inputs), expected, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
        beside.release()  # the next step creates the context again
    assert (beside.info.n_embd, beside.info.n_ctx) == (alone.info.n_embd, alone.info.n_ctx)
    beside.close()
    engine.close()
    alone.close()


def test_the_context_is_freed_when_the_worker_is_idle(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: SimpleQueue[Any] = SimpleQueue()
    sent: SimpleQueue[Any] = SimpleQueue()
    released: SimpleQueue[str] = SimpleQueue()

    class Thread(GenerationThread):
        def _rest(self) -> None:
            super()._rest()
            released.put("released")

    def embed(id: int) -> None:
        thread.tell(Add(Job(id, [[1, 5, 9]], Vectors(PoolRequest([TextPrompt("x")], "input")))))
        answer = next(message for message in iter(lambda: sent.get(timeout=60), None) if isinstance(message, Pooled))
        assert (answer.id, answer.tokens) == (id, 3)

    with tempfile.TemporaryFile() as file:
        lock = CpuLock(file.fileno(), threads=1, cpus=[0])
        thread = Thread(str(tiny_models["llama"]), engine_options(**OPTIONS), lock, posted.put, sent.put)
        thread.start()
        embed(1)
        embed(2)
        assert released.empty(), "it stays while it is used"
        monkeypatch.setattr(generation_thread, "_EMBEDDINGS_IDLE_SECONDS", 0.001)
        embed(3)
        assert released.get(timeout=60) == "released"
        embed(4)
        assert released.get(timeout=60) == "released"
