"""Preemption of requests for another key, with tiny models of every kind of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.harness import Harness

PROMPTS = [" ".join(f"the {n} of {name} and in an{n}" for n in range(20)) for name in ("mare", "foal", "horse")]


@pytest.mark.parametrize("kind", ["llama", "sliding_window", "recurrent", "hybrid"])
def test_a_preempted_deterministic_answer_has_the_same_bytes(tiny_models: dict[str, Path], kind: str) -> None:
    alone = Harness(tiny_models[kind], parallel=2, kv_unified=False)
    expected = [alone.alone(id, text, max_tokens=60, deterministic=True) for id, text in enumerate(PROMPTS)]
    alone.close()
    harness = Harness(tiny_models[kind], parallel=2, kv_unified=False)
    flood = [harness.ask(id, PROMPTS[id], max_tokens=60, deterministic=True, key="flood") for id in range(2)]
    while not all(len(harness.answers[id]) > 20 for id in range(2)):
        harness.step()
    harness.ask(2, PROMPTS[2], max_tokens=60, deterministic=True, key="other")
    harness.run()
    assert [request.preempted for request in flood] == [0, 1]
    assert [harness.answers[id] for id in range(3)] == expected
    harness.close()
