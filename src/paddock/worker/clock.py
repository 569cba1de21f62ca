"""The times of one answer, and what each of them was spent on."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.types import TimeParts, Timings
from paddock.worker.step_times import GroupTimes


@dataclass(slots=True)
class Clock:
    """When a request was accepted, when its first prefill step began, and when its tokens came."""

    accepted: float = 0.0
    begun: float | None = None
    first: float | None = None
    newest: float | None = None
    """When the newest token came. None during prefill."""
    media: float = 0.0
    """Seconds in which its images and sound were encoded, before it was queued."""

    _group: GroupTimes | None = None
    _computed: float = 0.0
    """Seconds in which its prompt was computed: its share of the steps."""
    _requeued: float = 0.0
    """Seconds that it waited for a slot again, after a preemption."""
    _skipped: float = 0.0
    """What `GroupTimes.elsewhere` grew meanwhile."""
    _resumed: float | None = None
    """The newest token when it was resumed."""
    _restored: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Seconds for its prefix from host memory and disk: before, during and after its prefill."""
    _mark_begun: float = 0.0
    _mark_first: float = 0.0
    _mark_newest: float = 0.0
    """`GroupTimes.elsewhere` at these times."""
    _computed_first: float = 0.0

    def begin(self, now: float) -> float | None:
        """Call this when a prefill step begins. The first call returns how long the request was queued."""
        if self.begun is not None:
            return None
        self.begun = now
        return max(now - self.accepted, 0.0)

    def prefill(self, now: float, group: GroupTimes, copied: float = 0.0) -> None:
        """Call this after `begin` if the step computes a part of its prompt. `copied` of the seconds since `now` were
        spent on copies.
        """
        mark = group.elsewhere - copied
        if self._group is None:
            self._group, self._mark_begun = group, mark
        elif self.newest is not None and self.newest != self._resumed:
            # It was preempted. All that happened since its newest token was its wait for a slot.
            self._resumed = self.newest
            self._requeued += max(now - self.newest, 0.0)
            self._skipped += mark - self._mark_newest

    def computed(self, seconds: float) -> None:
        """A step has computed a part of its prompt."""
        self._computed += seconds

    def restored(self, seconds: float) -> None:
        """A part of its prefix was copied from host memory, or read from disk."""
        before, during, after = self._restored
        if self.begun is None:
            before += seconds
        elif self.first is None:
            during += seconds
        else:
            after += seconds
        self._restored = before, during, after

    def tick(self, now: float) -> None:
        """Call this for each new token."""
        self._mark_newest = 0.0 if self._group is None else self._group.elsewhere
        if self.first is None:
            self.first = now
            self._mark_first, self._computed_first = self._mark_newest, self._computed
        self.newest = now

    @property
    def generating(self) -> float:
        """Seconds from the first to the newest token."""
        return 0.0 if self.first is None or self.newest is None else self.newest - self.first

    def timings(self, now: float) -> Timings:
        """During prefill the prompt time runs until `now`."""
        prompt = 0.0 if self.begun is None else (now if self.first is None else self.first) - self.begun
        return Timings(prompt=prompt, generation=self.generating)

    def parts(self) -> TimeParts:
        """What the time from `accepted` to the newest token was spent on. The parts add up to it."""
        if self.first is None or self.newest is None:
            return TimeParts()
        begun = self.first if self.begun is None else self.begun
        before, during, after = self._restored
        waited = _Span(begun - self.accepted)
        media = waited.take(self.media)
        restore = waited.take(before)
        prefill = _Span(self.first - begun)
        restore += prefill.take(during)
        others = prefill.take(self._mark_first - self._mark_begun - self._computed_first - during)
        decode = _Span(self.newest - self.first)
        requeued = decode.take(self._requeued)
        restore += decode.take(after)
        computed = self._computed - self._computed_first
        others += decode.take(self._mark_newest - self._mark_first - self._skipped - computed - after)
        return TimeParts(
            queue=waited.left + requeued,
            media=media,
            restore=restore,
            prefill=prefill.left,
            decode=decode.left,
            others=others,
        )


class _Span:
    """A duration that parts are taken from, as long as something is left."""

    __slots__ = ("left",)

    def __init__(self, seconds: float) -> None:
        self.left = max(seconds, 0.0)

    def take(self, seconds: float) -> float:
        taken = min(max(seconds, 0.0), self.left)
        self.left -= taken
        return taken
