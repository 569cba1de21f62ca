"""Large bodies are parsed one at a time and leave most of the event loop to other requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.http.parse_turns import LARGE, ParseTurns


class _Clock(asyncio.SelectorEventLoop):
    """An event loop with a simulated clock, which advances when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        if not self._ready and scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def _simulated(run: Callable[[_Clock], Any]) -> Any:
    clock = _Clock()
    try:
        return clock.run_until_complete(run(clock))
    finally:
        clock.close()


_bodies = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(0.001, 0.2), st.floats(0, 2), st.booleans()), min_size=1, max_size=12
)


@given(_bodies)
def test_large_bodies_use_at_most_their_share_of_the_loop(bodies: list[tuple[str, float, float, bool]]) -> None:
    spans: list[tuple[float, float]] = []

    async def run(clock: _Clock) -> None:
        turns = ParseTurns(0.25)

        async def parse(owner: str, cost: float, start: float, leaves: bool) -> None:
            await asyncio.sleep(start)
            async with turns.turn(owner, LARGE + 1):
                begun = clock.now
                clock.now += cost  # parsing blocks the loop
                spans.append((begun, clock.now))
                if leaves:
                    raise ValueError("not a body")

        async def cancel_later(task: asyncio.Task[None], after: float) -> None:
            await asyncio.sleep(after)
            task.cancel()

        tasks = [asyncio.ensure_future(parse(*body)) for body in bodies]
        leaving = [
            asyncio.ensure_future(cancel_later(task, body[2] + 0.05))
            for task, body in zip(tasks, bodies, strict=True)
            if body[3]
        ]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*leaving)
        for outcome, body in zip(outcomes, bodies, strict=True):
            assert outcome is None or body[3], "every body that is not cancelled is parsed"
        await asyncio.sleep(1)
        async with asyncio.timeout(0.001), turns.turn("a", LARGE + 1):
            pass  # the lock is free

    _simulated(run)
    for (begun, ended), (following, _) in itertools.pairwise(spans):
        assert following - ended >= 3 * (ended - begun) - 1e-9


def test_owners_take_turns() -> None:
    order: list[str] = []

    async def run(clock: _Clock) -> None:
        turns = ParseTurns()

        async def parse(owner: str) -> None:
            async with turns.turn(owner, LARGE + 1):
                clock.now += 0.1
                order.append(owner)

        await asyncio.gather(*map(parse, "aaaabb"))

    _simulated(run)
    assert order == list("aabaab") or order == list("aababa")


def test_small_bodies_do_not_wait() -> None:
    async def run(clock: _Clock) -> float:
        turns = ParseTurns()
        async with turns.turn("a", LARGE + 1):
            clock.now += 0.1
        async with turns.turn("b", LARGE):
            return clock.now

    assert _simulated(run) == 0.1
