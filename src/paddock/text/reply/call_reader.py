"""Reports the tool calls that a shape reads: names, and arguments as JSON in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paddock.text.reply.reader import Reader, Reading, dumps
from paddock.types import CallDelta, Tool


@dataclass(slots=True)
class Parsed:
    """What a piece of text adds to a reply."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class CallReader(Reader):
    """The reader that a shape gets (`Calls.read`). Its methods raise `Malformed` if the text is no valid call."""

    def __init__(self, text: str, tools: Sequence[Tool], call_id: Callable[[int], str]) -> None:
        super().__init__(text)
        self.tools = {tool.name: tool for tool in tools}
        self.call_started = False
        """The name of the current call has been reported."""
        self._call_id = call_id
        self._call_begin = 0
        """The position at which the current call begins."""
        self._call_count = 0
        self._parsed = Parsed()

    def begin_call(self, name: str) -> None:
        if name not in self.tools or self.call_started:
            self.refuse()
        self.call_started = True
        self._parsed.calls.append(CallDelta(self._call_count, self._call_id(self._call_count), name))

    def add_arguments(self, text: str) -> None:
        """Report a piece of the JSON object with the arguments."""
        if text:
            self._parsed.calls.append(CallDelta(self._call_count, arguments=text))

    def end_call(self) -> None:
        self._call_count += 1
        self.call_started = False
        self._call_begin = self.at

    def call_by_argument(
        self, name: str, closing: str, read_argument: Callable[[], Reading[tuple[str, str]]], *, comma: str = ""
    ) -> Reading[None]:
        """Read a call with separate arguments, up to its closing marker. `read_argument` returns the name of an
        argument and its value as JSON.
        """
        self.begin_call(name)
        self.add_arguments("{")
        seen: set[str] = set()
        while not (yield from self.follows(closing)):
            if seen and comma:
                yield from self.expect(comma)
            key, value = yield from read_argument()
            if key in seen:
                self.refuse()
            self.add_arguments(f"{', ' if seen else ''}{dumps(key)}: {value}")
            seen.add(key)
        self.add_arguments("}")
        self.end_call()
