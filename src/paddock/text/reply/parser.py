"""A reply's text, cut anywhere → what of it is content, thoughts, and tool calls.

No character is lost: what turns out to be no call is content, and the reply is marked as malformed. Only markers and
the whitespace beside them are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paddock.text.reply.formats import BracedCalls, Calls, Format, NamedCalls, ObjectCalls, TaggedCalls
from paddock.text.reply.reader import BARE_VALUE, Malformed, Markers, Reader, Reading, dumps, loads
from paddock.types import CallDelta, Tool

_NAME_KEYS = frozenset({"name", "tool_name", "function"})
_ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_LONGEST_HEADER = 300
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_BARE_KEY = re.compile(r"[\w.$-]*")


@dataclass(slots=True)
class Parsed:
    """What a piece of text has added to a reply."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class ReplyParser(Reader):
    """The reply of one answer as it grows. `lead` is what the prompt's end has said of it already."""

    def __init__(
        self,
        format: Format,
        tools: Sequence[Tool],
        *,
        call_id: Callable[[int], str],
        lead: str = "",
        split_reasoning: bool = True,
    ) -> None:
        super().__init__(lead)
        self._calls = format.calls if tools else None
        self._reasoning = format.reasoning if split_reasoning else None
        self._tools = {tool.name: tool for tool in tools}
        self._call_id = call_id
        silent = format.silent if split_reasoning else ()
        starts = [*silent, *(self._calls.triggers if self._calls else ())]
        self._markers = Markers([*starts, *([self._reasoning.opening] if self._reasoning else [])])
        self._closing = Markers([self._reasoning.closing] if self._reasoning else [])
        self._bare = self._calls is not None and not (self._calls.begin or self._calls.opening)
        self.in_reasoning = False
        self.malformed = False
        self._mark = 0
        """Where the call begins that is being read."""
        self._held = ""
        """Whitespace that is left out should a marker follow."""
        self._fresh = False
        """Whitespace is left out until there is something else, because a marker came last."""
        self._said = False
        """Whether there has been content."""
        self._count = 0
        self._named = False
        """Whether the call that is being read has been announced."""
        self._parsed = Parsed()
        self._reading = self._read()
        next(self._reading, None)

    def feed(self, text: str) -> Parsed:
        """What may be said after this piece of text."""
        self._text += text
        return self._advance()

    def finish(self) -> Parsed:
        """What is left when nothing more comes."""
        self._ended = True
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
            else:
                if self._reasoning is not None and marker in (self._reasoning.opening, self._reasoning.closing):
                    self.in_reasoning = marker == self._reasoning.opening
                self._border()

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
            markers = self._closing if self.in_reasoning else self._markers
            begin, marker = markers.find(self._text, ended=self._ended)
            self._say(self._text[:begin])
            self._at = begin + len(marker)
            if marker:
                return marker
            if self._ended:
                return None
            yield

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

    def _read_calls(self, calls: Calls, trigger: str) -> Reading[None]:
        if trigger == "{":
            self._at -= 1
        elif calls.begin and calls.opening and trigger == calls.begin.strip():
            yield from self._expect(calls.opening)
        while True:
            match calls:
                case ObjectCalls():
                    yield from self._objects(calls)
                case NamedCalls():
                    yield from self._named_call(calls)
                case TaggedCalls():
                    yield from self._tagged_call(calls)
                case BracedCalls():
                    yield from self._braced_call(calls)
            if not calls.begin:
                return
            if calls.end and (yield from self._follows(calls.end)):
                return
            if not calls.opening or not (yield from self._follows(calls.opening)):
                yield from self._end_of_calls(calls)
                return

    def _end_of_calls(self, calls: Calls) -> Reading[None]:
        """After the last call: its end, unless the model stopped there."""
        if calls.end and (yield from self._peek()):
            self._refuse()

    def _begin_call(self, name: str) -> None:
        if name not in self._tools or self._named:
            self._refuse()
        self._named = True
        self._parsed.calls.append(CallDelta(self._count, self._call_id(self._count), name))

    def _add_arguments(self, text: str) -> None:
        if text:
            self._parsed.calls.append(CallDelta(self._count, arguments=text))

    def _end_call(self) -> None:
        self._count += 1
        self._named = False
        self._mark = self._at

    # ── calls that are JSON objects ──────────────────────────────────────────────────────────────────────────────────

    def _objects(self, calls: ObjectCalls) -> Reading[None]:
        """One of them, several in an array, or several one after another."""
        array = yield from self._follows("[")
        while True:
            yield from self._object()
            if not array and calls.closing.strip():
                yield from self._close(calls.closing)
            self._end_call()
            if array and (yield from self._follows("]")):
                break
            if array:
                yield from self._expect(",")
            elif calls.closing.strip() or not (yield from self._another()):
                break

    def _another(self) -> Reading[bool]:
        yield from self._follows(";")
        return (yield from self._peek()) == "{"

    def _object(self) -> Reading[None]:
        yield from self._expect("{")
        name, arguments = "", ""
        while True:
            if (yield from self._peek()) != '"':
                self._refuse()
            key = json.loads((yield from self._value()))
            yield from self._expect(":")
            begins = yield from self._peek()
            if key in _NAME_KEYS and begins == '"':
                name = json.loads((yield from self._value()))
            elif key == "function" and begins == "{":
                yield from self._object()
            elif (key in _ARGUMENTS_KEYS and name) or (key in self._tools and not name and begins == "{"):
                self._begin_call(name or key)
                yield from self._arguments()
            else:
                value = yield from self._value()
                arguments = value if key in _ARGUMENTS_KEYS else arguments
            if (yield from self._follows("}")):
                break
            yield from self._expect(",")
        if not self._named:
            self._begin_call(name)
            self._add_arguments(_object_text(arguments or "{}"))

    def _arguments(self) -> Reading[None]:
        """The arguments' JSON, passed on as it comes; or a string of it, as some models write it."""
        if (yield from self._peek()) == '"':
            self._add_arguments(_object_text((yield from self._value())))
        elif (yield from self._peek()) == "{":
            yield from self._value(self._add_arguments)
        else:
            self._refuse()

    # ── calls with a header ──────────────────────────────────────────────────────────────────────────────────────────

    def _named_call(self, calls: NamedCalls) -> Reading[None]:
        header = yield from self._until("{", longest=_LONGEST_HEADER)
        found = calls.pattern.fullmatch(header)
        if found is None:
            self._refuse()
        self._at -= 1
        self._begin_call(found["name"])
        yield from self._value(self._add_arguments)
        if calls.closing:
            yield from self._close(calls.closing)
        self._end_call()

    # ── calls with tags ──────────────────────────────────────────────────────────────────────────────────────────────

    def _tagged_call(self, calls: TaggedCalls) -> Reading[None]:
        name = yield from self._tagged_name(calls)
        self._begin_call(name)
        schemas = self._tools[name].parameters.get("properties")
        schemas = schemas if isinstance(schemas, dict) else {}
        self._add_arguments("{")
        seen: set[str] = set()
        while not (yield from self._follows(calls.closing)):
            yield from self._expect(calls.key_opening)
            about = yield from self._until(calls.value_mark, longest=_LONGEST_HEADER)
            key = re.split(r'["<]', about)[0].strip()
            if key in seen:
                self._refuse()
            raw = yield from self._until(calls.value_closing.strip())
            value = raw.removeprefix("\n").removesuffix("\n")
            value = dumps(value) if 'string="true"' in about else _typed(value, schemas.get(key))
            self._add_arguments(f"{', ' if seen else ''}{dumps(key)}: {value}")
            seen.add(key)
        self._add_arguments("}")
        self._end_call()

    def _tagged_name(self, calls: TaggedCalls) -> Reading[str]:
        if calls.name_end.strip():
            return (yield from self._until(calls.name_end.strip(), longest=_LONGEST_HEADER)).strip()
        name = yield from self._until("<", longest=_LONGEST_HEADER)
        self._at -= 1
        return name.strip()

    # ── calls that are almost JSON ───────────────────────────────────────────────────────────────────────────────────

    def _braced_call(self, calls: BracedCalls) -> Reading[None]:
        name = yield from self._until("{", longest=_LONGEST_HEADER)
        self._at -= 1
        self._begin_call(name.strip())
        self._add_arguments(dumps((yield from self._almost_json(calls.quote))))
        yield from self._close(calls.closing)
        self._end_call()

    def _almost_json(self, quote: str) -> Reading[Any]:
        if (yield from self._follows(quote)):
            return (yield from self._until(quote))
        if (yield from self._follows("{")):
            pairs: dict[str, Any] = {}
            while not (yield from self._follows("}")):
                if pairs:
                    yield from self._expect(",")
                bare = not (yield from self._follows(quote))
                key = (yield from self._run_of(_BARE_KEY)) if bare else (yield from self._until(quote))
                yield from self._expect(":")
                pairs[key] = yield from self._almost_json(quote)
            return pairs
        if (yield from self._follows("[")):
            items: list[Any] = []
            while not (yield from self._follows("]")):
                if items:
                    yield from self._expect(",")
                items.append((yield from self._almost_json(quote)))
            return items
        value = loads((yield from self._run_of(BARE_VALUE)))
        if isinstance(value, str):
            self._refuse()
        return value


def _typed(text: str, schema: Any) -> str:
    """The JSON of an argument written as plain text: where a text is expected it is one, else JSON if it is that."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return dumps(text)
    try:
        loads(text)
    except Malformed:
        return dumps(text)
    return text.strip()


def _object_text(text: str) -> str:
    """The JSON text of an object that may have been written as a string."""
    value = loads(text)
    if isinstance(value, str):
        text = value
        value = loads(text)
    if not isinstance(value, dict) or _LONE_SURROGATE.search(text):
        raise Malformed
    return text
