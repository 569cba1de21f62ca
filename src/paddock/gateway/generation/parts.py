"""An answer as a list of parts (reasoning, text, tool calls), for the dialects that stream it so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from paddock.types import TextLogprobs
from paddock.wire.messages import Delta


@dataclass(slots=True)
class Part:
    """One part, complete or not."""

    kind: Literal["reasoning", "text", "call"]
    index: int
    """Its position in the list."""
    text: str = ""
    """Reasoning, text, or the JSON of a call's arguments."""
    logprobs: list[TextLogprobs] = field(default_factory=list)
    call_index: int = -1
    call_id: str = ""
    name: str = ""
    withdrawn: bool = False
    """It turned out not to be a call: its text is sent again, as text."""

    def beginning(self) -> Part:
        """A copy without content."""
        return replace(self, text="", logprobs=[])


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a part. `text` and `logprobs` are what was added."""

    kind: Literal["begins", "grows", "ends"]
    part: Part
    text: str = ""
    logprobs: list[TextLogprobs] = field(default_factory=list)


class Parts:
    """Turns deltas into changes of parts. One part at a time is open."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._open: Part | None = None
        self._pending_logprobs: list[TextLogprobs] = []

    @property
    def kept(self) -> list[Part]:
        """All parts that were not withdrawn."""
        return [part for part in self._parts if not part.withdrawn]

    def feed_all(self, deltas: Sequence[Delta]) -> Delta:
        """For callers that need only the complete parts. Returns the last delta."""
        for delta in deltas:
            for _ in self.feed(delta):
                pass
        return deltas[-1]

    def feed(self, delta: Delta) -> Iterator[Change]:
        calls = delta.calls or []
        if delta.reasoning:
            yield from self._grow(Part("reasoning", len(self._parts)), delta.reasoning)
        for call in calls:
            if call.withdrawn:
                yield from self._withdraw(call.index)
        # A token may have no text of its own; its logprobs are reported with the next text.
        self._pending_logprobs += delta.logprobs or []
        if delta.text:
            logprobs, self._pending_logprobs = self._pending_logprobs, []
            yield from self._grow(Part("text", len(self._parts)), delta.text, logprobs)
        for call in calls:
            if not call.withdrawn:
                yield from self._grow(
                    Part("call", len(self._parts), call_index=call.index, call_id=call.id, name=call.name),
                    call.arguments,
                )
        if delta.finish is not None:
            yield from self._end()

    def _grow(self, fresh: Part, text: str, logprobs: list[TextLogprobs] | None = None) -> Iterator[Change]:
        """Extend the open part if it is of the same kind, otherwise start the fresh one."""
        part = self._open
        if part is None or (part.kind, part.call_index) != (fresh.kind, fresh.call_index):
            yield from self._end()
            part = self._open = fresh
            self._parts.append(part)
            yield Change("begins", part)
        part.text += text
        part.logprobs += logprobs or []
        if text:
            yield Change("grows", part, text, logprobs or [])

    def _withdraw(self, call_index: int) -> Iterator[Change]:
        for part in self._parts:
            if part.kind == "call" and part.call_index == call_index:
                part.withdrawn = True
                if part is self._open:
                    yield from self._end()

    def _end(self) -> Iterator[Change]:
        if self._open is not None:
            part, self._open = self._open, None
            yield Change("ends", part)
