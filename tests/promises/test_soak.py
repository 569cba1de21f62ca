"""Thousands of short requests with random disconnects leak nothing."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import pytest

from tests.engine.harness import Harness
from tests.tiers import full


@pytest.mark.timeout(400)  # a minute on an idle machine
@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=full)])
def test_no_leaks(tiny_models: dict[str, Path], count: int) -> None:
    harness = Harness(tiny_models["llama"], n_ctx=1024, parallel=8, cache_ram_bytes=768 * 4000)
    random_ = random.Random(5)
    stems = ["".join(random_.choices("ab ", k=random_.randrange(1, 40))) for _ in range(300)]
    memory: list[int] = []
    for id in range(count):
        harness.ask(id, random_.choice(stems) + random_.choice(stems), max_tokens=random_.randrange(1, 4))
        if random_.random() < 0.1:
            harness.scheduler.remove(id - random_.randrange(8))
        while harness.scheduler.queued > 4:
            harness.step()
        if id % (count // 10) == count // 10 - 1:
            harness.run()
            harness.answers.clear()
            harness.finished.clear()
            cache = harness.scheduler.cache
            assert cache.used == cache.idle_cells
            assert cache.stored <= 4000
            assert not any(slot.busy for slot in harness.scheduler.slots)
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    harness.close()
    assert memory[-1] - memory[2] < 20_000, f"kilobytes: {memory}"
