from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Request, Scheduler
from paddock.types import SamplingParams

END = 99


def _request(id: int, prompt: list[int], max_tokens: int = 100) -> Request:
    return Request(id, prompt, SamplingParams(), max_tokens)


def _run(scheduler: Scheduler, answer: list[int]) -> list[tuple[int, int | None, str | None]]:
    """Drive the scheduler with an engine that says `answer`, token by token, to every request."""
    seen: list[tuple[int, int | None, str | None]] = []
    held: list[int] = []
    while (plan := scheduler.schedule()) is not None:
        for _ in plan.forget:
            held.clear()
        (span,) = plan.spans
        assert span.start == len(held), "positions continue where the cache ends"
        held.extend(span.tokens)
        token = None if span.sampling is None else answer[span.drawn] if span.drawn < len(answer) else END
        seen += [(p.request.id, p.token, p.finish) for p in scheduler.commit(plan, [token])]
    assert scheduler.idle
    return seen


def _scheduler(n_ctx: int = 1000, n_batch: int = 16) -> Scheduler:
    return Scheduler(n_ctx=n_ctx, n_batch=n_batch, end_tokens=frozenset({END}))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 20), st.lists(st.integers(0, 9)))
def test_any_prompt_in_any_batch_size_gives_the_whole_answer(prompt: list[int], batch: int, answer: list[int]) -> None:
    scheduler = _scheduler(n_batch=batch)
    scheduler.add(_request(1, prompt))
    seen = _run(scheduler, answer)
    limit = answer[:100]
    assert [token for _, token, _ in seen if token is not None] == limit
    assert [finish for _, _, finish in seen][-1] == ("length" if len(answer) >= 100 else "stop")
    assert all(finish is None for _, _, finish in seen[:-1])


def test_one_after_another_in_the_order_they_came() -> None:
    scheduler = _scheduler()
    for id in (3, 1, 2):
        scheduler.add(_request(id, [5, 6]))
    assert [id for id, _, finish in _run(scheduler, [7]) if finish] == [3, 1, 2]


def test_max_tokens_and_the_end_of_the_context_end_an_answer() -> None:
    scheduler = _scheduler()
    scheduler.add(_request(1, [5], max_tokens=2))
    assert _run(scheduler, [7, 7, 7]) == [(1, 7, None), (1, 7, "length")]
    scheduler = _scheduler(n_ctx=4)
    scheduler.add(_request(1, [5, 5]))
    assert _run(scheduler, [7] * 9) == [(1, 7, None), (1, 7, "length")]


def test_a_removed_request_leaves_wherever_it_is() -> None:
    scheduler = _scheduler(n_batch=2)
    for id in (1, 2, 3):
        scheduler.add(_request(id, [5] * 5))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.commit(plan, [None])
    scheduler.remove(1)
    scheduler.remove(3)
    scheduler.remove(42)
    assert [id for id, _, finish in _run_after_removal(scheduler) if finish] == [2]


def _run_after_removal(scheduler: Scheduler) -> list[tuple[int, int | None, str | None]]:
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.forget == [0], "the cache of the request that left is cleared first"
    assert plan.spans[0].start == 0
    seen: list[tuple[int, int | None, str | None]] = []
    scheduler.commit(plan, [None])
    while (plan := scheduler.schedule()) is not None:
        token = END if plan.spans[0].sampling else None
        seen += [(p.request.id, p.token, p.finish) for p in scheduler.commit(plan, [token])]
    return seen
