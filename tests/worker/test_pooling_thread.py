"""The engine thread of an embedding model: waiting inputs share a step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from paddock.scheduling import Job
from paddock.types import PoolRequest, TextPrompt
from paddock.wire.messages import Pooled
from paddock.worker.commands import Add, Ended, Opened, Remove
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.pooled_steps import Vectors
from paddock.worker.pooling_thread import PoolingThread
from tests.options import engine_options


class CountedLock(CpuLock):
    taken = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.taken += 1
        with super().hold():
            yield


def test_waiting_inputs_share_a_step(tiny_models: dict[str, Path]) -> None:
    posted: SimpleQueue[Any] = SimpleQueue()
    sent: SimpleQueue[Any] = SimpleQueue()
    with tempfile.TemporaryFile() as file:
        cpu_lock = CountedLock(file.fileno(), threads=1, cpus=[0])
        options = engine_options(n_threads=1, n_batch=512, n_gpu_layers=0, pooling="mean")
        thread = PoolingThread(str(tiny_models["embedding"]), options, cpu_lock, posted.put, sent.put)
        for id in range(50):
            inputs = [[2, 5 + id, 3], [2, 6, 7, 3]]
            thread.tell(Add(Job(id, inputs, Vectors(PoolRequest([TextPrompt("x")] * 2, "input")))))
        thread.tell(Remove(7))
        thread.start()
        messages = iter(lambda: sent.get(timeout=60), None)
        pooled = (message for message in messages if isinstance(message, Pooled))
        answers = {answer.id: answer for answer in islice(pooled, 49)}
        assert next(event for event in iter(posted.get, None) if not hasattr(event, "progress")) == Opened()
        assert [posted.get(timeout=60) for _ in range(49)] == [Ended(id, 0) for id in answers]
    assert set(answers) == {*range(50)} - {7}
    assert all(answer.tokens == 7 and answer.width == 64 for answer in answers.values())
    assert len({answer.vectors[0] for answer in answers.values()}) == 49
    assert cpu_lock.taken == 2, "98 inputs, at most 64 in a step"
