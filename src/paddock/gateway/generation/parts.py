"""An answer as a row of parts — thoughts, words, calls — for the dialects that stream it so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from paddock.types import TextLogprobs
from paddock.wire import Delta


@dataclass(slots=True)
class Part:
    """One part, as far as it has come."""

    kind: Literal["reasoning", "text", "call"]
    index: int
    """Its place in the row."""
    text: str = ""
    """Thoughts, words, or the JSON of a call's arguments."""
    logprobs: list[TextLogprobs] = field(default_factory=list)
    call_index: int = -1
    call_id: str = ""
    name: str = ""
    withdrawn: bool = False
    """It looked like a call and was none: its text comes again, as words."""

    def beginning(self) -> Part:
        """Itself, with nothing in it yet."""
        return replace(self, text="", logprobs=[])


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to a part; `text` and `logprobs` are what it grew by."""

    kind: Literal["begins", "grows", "ends"]
    part: Part
    text: str = ""
    logprobs: list[TextLogprobs] = field(default_factory=list)


class Parts:
    """Turns deltas into changes of parts, of which one at a time is open."""

    def __init__(self) -> None:
        self._row: list[Part] = []
        self._open: Part | None = None
        self._unspoken: list[TextLogprobs] = []

    @property
    def kept(self) -> list[Part]:
        """All so far, but for those that were withdrawn."""
        return [part for part in self._row if not part.withdrawn]

    def feed_all(self, deltas: Iterable[Delta]) -> None:
        """For who wants nothing but the parts in the end."""
        for delta in deltas:
            for _ in self.feed(delta):
                pass

    def feed(self, delta: Delta) -> Iterator[Change]:
        calls = delta.calls or []
        if delta.reasoning:
            yield from self._grow(Part("reasoning", len(self._row)), delta.reasoning)
        for call in calls:
            if call.withdrawn:
                yield from self._withdraw(call.index)
        # A token need not say anything by itself; it is reported with the word that it begins.
        self._unspoken += delta.logprobs or []
        if delta.text:
            logprobs, self._unspoken = self._unspoken, []
            yield from self._grow(Part("text", len(self._row)), delta.text, logprobs)
        for call in calls:
            if not call.withdrawn:
                yield from self._grow(
                    Part("call", len(self._row), call_index=call.index, call_id=call.id, name=call.name), call.arguments
                )
        if delta.finish is not None:
            yield from self._end()

    def _grow(self, fresh: Part, text: str, logprobs: list[TextLogprobs] | None = None) -> Iterator[Change]:
        """Go on with the open part if it is of this kind, otherwise begin the fresh one."""
        part = self._open
        if part is None or (part.kind, part.call_index) != (fresh.kind, fresh.call_index):
            yield from self._end()
            part = self._open = fresh
            self._row.append(part)
            yield Change("begins", part)
        part.text += text
        part.logprobs += logprobs or []
        if text:
            yield Change("grows", part, text, logprobs or [])

    def _withdraw(self, call_index: int) -> Iterator[Change]:
        for part in self._row:
            if part.kind == "call" and part.call_index == call_index:
                part.withdrawn = True
                if part is self._open:
                    yield from self._end()

    def _end(self) -> Iterator[Change]:
        if self._open is not None:
            part, self._open = self._open, None
            yield Change("ends", part)
