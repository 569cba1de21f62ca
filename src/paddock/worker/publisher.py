"""Makes deltas of what a step gave, and sends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paddock.errors import PaddockError
from paddock.scheduling import Progress, Request
from paddock.wire.messages import Delta, Step
from paddock.worker.answers import Answer
from paddock.worker.commands import Ended, Event, Explained, Failed
from paddock.worker.counters import Counters
from paddock.worker.logs import log_failure


class Remove(Protocol):
    """Remove an answer, or all answers of a request, from the scheduler."""

    def __call__(self, id: int, index: int | None = None) -> None: ...


class Publisher:
    """Belongs to the engine thread: a handover to another thread takes longer than the work.

    It keeps what a step gave until `publish`, which a GPU's next step need not wait for.
    """

    def __init__(
        self, counters: Counters, remove: Remove, post: Callable[[Event], None], send: Callable[[Any], None]
    ) -> None:
        self._counters = counters
        self._remove = remove
        self._post = post
        self._send = send
        self._kept: tuple[list[Delta], Sequence[Progress], float] | None = None

    @property
    def is_empty(self) -> bool:
        return self._kept is None

    def keep(self, deltas: list[Delta], steps: Sequence[Progress], now: float) -> None:
        """What a step gave, with deltas to send before it. `now` is when the step ended."""
        assert self._kept is None, "the step before is published"
        self._kept = deltas, steps, now

    def publish(self) -> None:
        """Send what is kept. It may remove requests, and force tokens that are to be sampled next."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        deltas, steps, now = kept
        arrived: dict[Answer, tuple[float | None, int]] = {}
        explained: list[Explained] = []
        for progress in steps:
            request, answer = progress.request, progress.request.answer
            if answer.is_stopped:
                continue  # an earlier token of this step ended the answer; the rest was drafted
            if progress.error is not None:
                self.fail(request, progress.error)
                continue
            newest = answer.clock.newest
            try:
                delta, forced = answer.advance(progress, now), answer.forced_tokens()
            except Exception as error:  # fails this request only
                self.fail(request, _decode_error(error))
                continue
            if progress.token is not None or progress.finish == "stop":
                before, count = arrived.get(answer, (newest, 0))
                arrived[answer] = before, count + 1
            if newest is None and answer.clock.newest is not None:
                self._counters.prompt_done(answer.clock.timings(now).prompt)
            if delta is not None and delta.finish is not None and answer.request.cache_report:
                explained.append(Explained(delta, answer.explanation))
            elif delta is not None:
                deltas.append(delta)
            if forced:
                request.sampler.force(forced)
            request.sampler.step_limit = answer.step_limit
            if answer.is_stopped and progress.finish is None:
                self._remove(request.id, request.index)
            if answer.is_stopped or progress.finish is not None:
                self._post(Ended(request.id, request.index, answer.explanation))
        self._counters.tokens(Counter(arrived.values()), now)
        if deltas:
            self._send(Step(deltas))
        for event in explained:  # after the other deltas of the same answers
            self._post(event)

    def fail(self, request: Request, error: PaddockError) -> None:
        """End all answers of a request with this error. Other requests continue."""
        self._remove(request.id)
        request.answer.fail()
        if error.__cause__ is not None:
            log_failure("a request failed", error.__cause__)
        self._post(Failed(request.id, error))


def _decode_error(error: Exception) -> PaddockError:
    failure = PaddockError(f"cannot decode the answer: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
