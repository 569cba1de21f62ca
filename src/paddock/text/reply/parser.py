"""Splits a reply into content, reasoning and tool calls while its text arrives.

No character is lost: text that starts like a call but is none is content, and the reply is marked as malformed. Only
markers and the whitespace beside them are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paddock.text.reply.bare import BareCall
from paddock.text.reply.format import Format
from paddock.text.reply.reader import CallReader, Malformed, Markers, Parsed, Reading
from paddock.types import CallDelta, Tool


class ReplyParser(CallReader):
    """Parses one reply. `reply_prefix` is the start of the reply that the prompt contains already."""

    def __init__(
        self,
        format: Format,
        tools: Sequence[Tool],
        *,
        call_id: Callable[[int], str],
        reply_prefix: str = "",
        split_reasoning: bool = True,
        bare_calls: bool = True,
    ) -> None:
        """`bare_calls`: accept a reply that is only the JSON object of a call, whatever the format."""
        super().__init__(reply_prefix, tools, call_id)
        self._calls = format if tools else None
        self._reasoning = format.reasoning if split_reasoning else None
        self._skipped = format.skipped_markers if split_reasoning else ()
        starts = [*self._skipped, *(self._calls.start_markers if self._calls else ())]
        reasoning = [self._reasoning.opening, self._reasoning.closing] if self._reasoning else []
        self._markers = Markers([*starts, *reasoning])
        self._reasoning_end = Markers(reasoning[1:])
        self._is_bare = self._calls is not None and self._calls.is_bare
        self._bare_call = BareCall(self.tools, only_fenced=self._is_bare) if bare_calls and self._calls else None
        self.in_reasoning = False
        self.malformed = False
        self._held = ""
        """Whitespace that is dropped if a marker follows."""
        self._after_marker = False
        """Drop whitespace until other text arrives."""
        self._has_content = False
        self._reading = self._read()
        next(self._reading, None)

    def feed(self, text: str) -> Parsed:
        """Parse a piece of text. Returns what is certain after it."""
        self.text += text
        return self._advance()

    def finish(self) -> Parsed:
        """End the text. Returns the rest."""
        self.ended = True
        return self._advance()

    def _advance(self) -> Parsed:
        next(self._reading, None)
        parsed, self._parsed = self._parsed, Parsed()
        return parsed

    # ── content and reasoning ────────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> Reading[None]:
        while True:
            marker = yield from self._read_until_marker()
            if marker is None:
                self._add_trailing_whitespace()
                return
            if self._calls is not None and (marker == "{" or marker in self._calls.start_markers):
                yield from self._try_calls(self._calls, marker)
            elif self._is_stray(marker):
                self._add_text(marker)
            else:
                if self._reasoning is not None and marker in (self._reasoning.opening, self._reasoning.closing):
                    self.in_reasoning = marker == self._reasoning.opening
                self._drop_whitespace()

    def _is_stray(self, marker: str) -> bool:
        """Whether the marker ends reasoning that never started. Before any content, it means that there is none."""
        is_closing = self._reasoning is not None and marker == self._reasoning.closing
        return is_closing and not self.in_reasoning and self._has_content and marker not in self._skipped

    def _read_until_marker(self) -> Reading[str | None]:
        """Add the text up to the next marker, and skip the marker. Returns None at the end of the text."""
        while True:
            self.text, self.at = self.text[self.at :], 0
            is_start = not (self._has_content or self.in_reasoning or self._call_count)
            if self._is_bare and is_start:
                stripped = self.text.lstrip()
                if stripped.startswith("{"):
                    self._add_text(self.text[: -len(stripped)])
                    self.text, self.at = stripped, 1
                    return "{"
            if self._bare_call is not None and is_start:
                found = self._bare_call.look(self.text, ended=self.ended)
                if found == "wait":
                    yield
                    continue
                if found != "no":
                    self._add_whole_call(*found)
                    return None
            markers = self._reasoning_end if self.in_reasoning else self._markers
            begin, marker = markers.find(self.text, ended=self.ended)
            self._add_text(self.text[:begin])
            self.at = begin + len(marker)
            if marker:
                return marker
            if self.ended:
                return None
            yield

    def _add_whole_call(self, name: str, arguments: str) -> None:
        """The whole reply is one call."""
        self._drop_whitespace()
        self.at = len(self.text)
        self.begin_call(name)
        self.add_arguments(arguments)
        self.end_call()

    def _add_text(self, text: str) -> None:
        text = self._held + text
        if self._after_marker:
            text = text.lstrip()
        stripped = text.rstrip()
        self._held = text[len(stripped) :]
        if stripped:
            self._after_marker = False
            if self.in_reasoning:
                self._parsed.reasoning += stripped
            else:
                self._parsed.content += stripped
                self._has_content = True

    def _add_trailing_whitespace(self) -> None:
        """Whitespace at the end belongs to content, but not after a call."""
        if not self._after_marker and not self._call_count and not self.in_reasoning:
            self._parsed.content += self._held
        self._held = ""

    def _drop_whitespace(self) -> None:
        self._held = ""
        self._after_marker = True

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_calls(self, calls: Format, start: str) -> Reading[None]:
        """Parse calls from their start marker on. If they are malformed, the rest of them is content."""
        self._call_begin = begin = self.at - len(start)
        try:
            yield from self._read_calls(calls, start)
        except (Malformed, RecursionError):
            self.malformed = self.malformed or self.call_started or start != "{"
            if self.call_started:
                self._parsed.calls.append(CallDelta(self._call_count, withdrawn=True))
                self.call_started = False
                self._call_count += 1  # the client has seen its index
            self.at = begin + len(start) if self._call_begin == begin else self._call_begin
            self._add_text(self.text[self._call_begin : self.at])
        else:
            self._drop_whitespace()

    def _read_calls(self, calls: Format, start: str) -> Reading[None]:
        if start == "{":
            self.at -= 1
        elif calls.begin and calls.opening and start == calls.begin.strip():
            yield from self.expect(calls.opening)
        while True:
            yield from calls.read(self)
            if not calls.begin or (calls.end and (yield from self.follows(calls.end))):
                return
            if not calls.opening or not (yield from self.follows(calls.opening)):
                break
        # The end marker may be missing at the end of the text.
        if calls.end and (yield from self.peek()):
            self.refuse()
