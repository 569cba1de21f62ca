"""Deterministic requests are always computed in batches of the same shape."""

from __future__ import annotations

import pytest

from tests.scheduling.harness import CUT, Harness


@pytest.mark.parametrize("whole", [False, True, CUT])
@pytest.mark.parametrize("unified", [True, False])
def test_deterministic_requests_always_use_batches_of_the_same_shape(unified: bool, whole: bool | str) -> None:
    def shapes(before: list[str], beside: list[str]) -> list[tuple[int, int]]:
        harness = Harness(kv_unified=unified, n_ctx=1024, whole=whole, batch=256)
        for id, text in enumerate(before):
            harness.ask(10 + id, text, deterministic=True)
        harness.run()
        for id, text in enumerate(beside):
            harness.ask(20 + id, text, deterministic=id % 2 == 0)
        harness.ask(1, "a" * 300, max_tokens=5, deterministic=True)
        seen = []
        while (plan := harness.step()) is not None:
            for span, request in zip(plan.spans, plan.requests, strict=True):
                if request.id == 1:
                    assert all(other.deterministic for other in plan.requests)
                    in_prompt = span.start < request.prompt_size
                    assert len(plan.spans) <= (1 if in_prompt else harness.engine.info.exact_batch)
                    assert in_prompt or all(len(span.tokens) == 1 for span in plan.spans)
                    seen.append((span.start, len(span.tokens)))
        return seen

    cold = shapes([], [])
    warm = shapes(["a" * 300 + "b"], ["a" * 200, "c" * 100, "a" * 301])
    assert len(warm) == len(cold) - 2, "the prefix on the grid was reused"
    assert cold[: len(cold) - len(warm)] == [(0, 128), (128, 128)][: len(cold) - len(warm)]
    assert cold[len(cold) - len(warm) :] == warm


@pytest.mark.parametrize("n_batch", [1, 48, 100, 128])
def test_a_deterministic_chunk_fits_the_batch_and_ends_on_the_grid(n_batch: int) -> None:
    def starts(text: str) -> list[int]:
        harness.ask(1, text, max_tokens=1, deterministic=True)
        found = []
        while (plan := harness.step()) is not None:
            assert sum(len(span.tokens) for span in plan.spans) <= n_batch
            found += [span.start for span in plan.spans]
        return found

    harness = Harness(n_ctx=1024, batch=n_batch)
    cold = starts("a" * 300)
    assert {0, 128, 256} <= set(cold)
    assert starts("a" * 300) == [start for start in cold if start >= 256], "reused up to the grid, then the same chunks"


def test_deterministic_answers_share_steps_up_to_the_exact_batch() -> None:
    harness = Harness(kv_unified=False, parallel=6, n_ctx=1024)
    for id in range(5):
        harness.ask(id, f"{id}", max_tokens=20, deterministic=True)
    sequences = []
    while (plan := harness.step()) is not None:
        sequences.append([span.sequence for span in plan.spans])
    assert max(map(len, sequences)) == harness.engine.info.exact_batch == 3
    assert sum(ids == list(range(ids[0], ids[0] + 3)) for ids in sequences if len(ids) == 3) >= 15, "adjacent sequences"
