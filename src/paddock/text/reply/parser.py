"""A reply's text, cut anywhere → what of it is content, thoughts, and tool calls.

No character is lost: what turns out to be no call is content, and the reply is marked as malformed. Only markers and
the whitespace beside them are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paddock.text.reply.bare import BareCall
from paddock.text.reply.calls import CallReader, Parsed
from paddock.text.reply.reader import Malformed, Markers, Reading
from paddock.text.reply.shapes import Calls, Format
from paddock.types import CallDelta, Tool


class ReplyParser(CallReader):
    """The reply of one answer as it grows. `lead` is what the prompt's end has said of it already."""

    def __init__(
        self,
        format: Format,
        tools: Sequence[Tool],
        *,
        call_id: Callable[[int], str],
        lead: str = "",
        split_reasoning: bool = True,
        bare_calls: bool = True,
    ) -> None:
        """`bare_calls`: whether a reply that is nothing but the JSON object of a call is one, whatever the format."""
        super().__init__(lead, tools, call_id)
        self._calls = format.calls if tools else None
        self._reasoning = format.reasoning if split_reasoning else None
        self._silent = format.silent if split_reasoning else ()
        starts = [*self._silent, *(self._calls.triggers if self._calls else ())]
        thoughts = [self._reasoning.opening, self._reasoning.closing] if self._reasoning else []
        self._markers = Markers([*starts, *thoughts])
        self._closing = Markers(thoughts[1:])
        self._bare = self._calls is not None and self._calls.is_bare
        self._bare_call = BareCall(self._tools, only_fenced=self._bare) if bare_calls and self._calls else None
        self.in_reasoning = False
        self.malformed = False
        self._held = ""
        """Whitespace that is left out should a marker follow."""
        self._fresh = False
        """Whitespace is left out until there is something else, because a marker came last."""
        self._said = False
        """Whether there has been content."""
        self._reading = self._read()
        next(self._reading, None)

    def feed(self, text: str) -> Parsed:
        """What may be said after this piece of text."""
        self._text += text
        return self._advance()

    def finish(self) -> Parsed:
        """What is left when nothing more comes."""
        self.end()
        return self._advance()

    def _advance(self) -> Parsed:
        next(self._reading, None)
        parsed, self._parsed = self._parsed, Parsed()
        return parsed

    # ── content and thoughts ─────────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> Reading[None]:
        while True:
            marker = yield from self._until_marker()
            if marker is None:
                self._say_rest()
                return
            if self._calls is not None and (marker == "{" or marker in self._calls.triggers):
                yield from self._try_calls(self._calls, marker)
            elif self._is_stray(marker):
                self._say(marker)
            else:
                if self._reasoning is not None and marker in (self._reasoning.opening, self._reasoning.closing):
                    self.in_reasoning = marker == self._reasoning.opening
                self._border()

    def _is_stray(self, marker: str) -> bool:
        """Whether it ends a thought that was never begun. Before anything else it says that there is no thought."""
        closes = self._reasoning is not None and marker == self._reasoning.closing
        return closes and not self.in_reasoning and self._said and marker not in self._silent

    def _until_marker(self) -> Reading[str | None]:
        """Say everything up to the next marker and pass over it. None at the end of all text."""
        while True:
            self._text, self._at = self._text[self._at :], 0
            if self._bare and not (self._said or self.in_reasoning or self._count):
                words = self._text.lstrip()
                if words.startswith("{"):
                    self._say(self._text[: -len(words)])
                    self._text, self._at = words, 1
                    return "{"
            if self._bare_call is not None and not (self._said or self.in_reasoning or self._count):
                found = self._bare_call.look(self._text, ended=self._ended)
                if found == "wait":
                    yield
                    continue
                if found != "no":
                    self._call_bare(*found)
                    return None
            markers = self._closing if self.in_reasoning else self._markers
            begin, marker = markers.find(self._text, ended=self._ended)
            self._say(self._text[:begin])
            self._at = begin + len(marker)
            if marker:
                return marker
            if self._ended:
                return None
            yield

    def _call_bare(self, name: str, arguments: str) -> None:
        """The whole reply is one call."""
        self._border()
        self._at = len(self._text)
        self._begin_call(name)
        self._add_arguments(arguments)
        self._end_call()

    def _say(self, text: str) -> None:
        text = self._held + text
        if self._fresh:
            text = text.lstrip()
        words = text.rstrip()
        self._held = text[len(words) :]
        if words:
            self._fresh = False
            if self.in_reasoning:
                self._parsed.reasoning += words
            else:
                self._parsed.content += words
                self._said = True

    def _say_rest(self) -> None:
        """Whitespace at the end is content like any other, but not after a call."""
        if not self._fresh and not self._count and not self.in_reasoning:
            self._parsed.content += self._held
        self._held = ""

    def _border(self) -> None:
        self._held = ""
        self._fresh = True

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_calls(self, calls: Calls, trigger: str) -> Reading[None]:
        """Read calls from the trigger on. Where they cannot be understood, what is left of them is content."""
        self._mark = self._at - len(trigger)
        begun = self._mark
        try:
            yield from self._read_calls(calls, trigger)
        except (Malformed, RecursionError):
            self.malformed = self.malformed or self._named or trigger != "{"
            if self._named:
                self._parsed.calls.append(CallDelta(self._count, withdrawn=True))
                self._named = False
                self._count += 1  # its number has been seen
            self._at = self._mark + len(trigger) if self._mark == begun else self._mark
            self._say(self._text[self._mark : self._at])
        else:
            self._border()
