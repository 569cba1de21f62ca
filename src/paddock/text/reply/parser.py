"""A reply's text, cut anywhere → what of it is content, thoughts, and tool calls.

The parser is written as if all text were there already: a generator that pauses wherever more is needed. No character
is lost: what turns out to be no call is content, and the reply is marked as malformed. Only markers and the whitespace
beside them are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from paddock.text.reply.formats import BracedCalls, Calls, Format, NamedCalls, ObjectCalls, TaggedCalls
from paddock.types import CallDelta, Tool

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A part of the parser: pauses for more text and comes to a T."""

_NAME_KEYS = frozenset({"name", "tool_name", "function"})
_ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_LONGEST_HEADER = 300
_BARE_VALUE = re.compile(r"[^\s,\]}]*")
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


class _Malformed(Exception):
    """This is no call."""


class ReplyParser:
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
        self._calls = format.calls if tools else None
        self._reasoning = format.reasoning if split_reasoning else None
        self._tools = {tool.name: tool for tool in tools}
        self._call_id = call_id
        silent = format.silent if split_reasoning else ()
        starts = [*silent, *(self._calls.triggers if self._calls else ())]
        self._markers = _Markers([*starts, *([self._reasoning.opening] if self._reasoning else [])])
        self._closing = _Markers([self._reasoning.closing] if self._reasoning else [])
        self._bare = self._calls is not None and not (self._calls.begin or self._calls.opening)
        self.in_reasoning = False
        self.malformed = False
        self._text = lead
        self._at = 0
        self._mark = 0
        """Where the call begins that is being read."""
        self._ended = False
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

    @property
    def calls(self) -> int:
        """How many there have been."""
        return self._count

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
        except (_Malformed, RecursionError):
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
            yield from self._value(passing_on=True)
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
        yield from self._value(passing_on=True)
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
            value = _dumps(value) if 'string="true"' in about else _typed(value, schemas.get(key))
            self._add_arguments(f"{', ' if seen else ''}{_dumps(key)}: {value}")
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
        self._add_arguments(_dumps((yield from self._almost_json(calls.quote))))
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
        value = _loads((yield from self._run_of(_BARE_VALUE)))
        if isinstance(value, str):
            self._refuse()
        return value

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _more(self) -> Reading[None]:
        if self._ended:
            self._refuse()
        yield

    def _refuse(self) -> NoReturn:
        raise _Malformed

    def _peek(self) -> Reading[str]:
        """The next character that is not whitespace, or nothing at the end. Whitespace before it is passed over."""
        while True:
            while self._at < len(self._text) and self._text[self._at].isspace():
                self._at += 1
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            yield

    def _follows(self, marker: str) -> Reading[bool]:
        """Whether this comes next, in which case it is passed over."""
        marker = marker.strip()
        yield from self._peek()
        while (
            not self._ended and marker.startswith(self._text[self._at :]) and len(self._text) - self._at < len(marker)
        ):
            yield
        found = self._text.startswith(marker, self._at)
        self._at += len(marker) * found
        return found

    def _expect(self, marker: str) -> Reading[None]:
        if not (yield from self._follows(marker)):
            self._refuse()

    def _close(self, marker: str) -> Reading[None]:
        """The same, unless all text ends here: models may leave it to the token that ends their turn."""
        if (yield from self._peek()):
            yield from self._expect(marker)

    def _until(self, marker: str, *, longest: int | None = None) -> Reading[str]:
        """Everything before the marker, which is passed over."""
        begin = searched = self._at
        while (found := self._text.find(marker, searched)) < 0:
            if longest is not None and len(self._text) - begin > longest:
                self._refuse()
            searched = max(begin, len(self._text) - len(marker) + 1)
            yield from self._more()
        self._at = found + len(marker)
        return self._text[begin:found]

    def _run_of(self, pattern: re.Pattern[str]) -> Reading[str]:
        """All that fits the pattern, once it is clear that no more does."""
        yield from self._peek()
        while True:
            found = pattern.match(self._text, self._at)
            assert found is not None, "it may be empty"
            if found.end() < len(self._text) or self._ended:
                self._at = found.end()
                return found[0]
            yield

    def _value(self, *, passing_on: bool = False) -> Reading[str]:
        """The text of a JSON value. Where it is passed on, as arguments, that happens piece by piece."""
        first = yield from self._peek()
        if first not in '{["' or not first:
            text = yield from self._run_of(_BARE_VALUE)
            _loads(text)
            return text
        begin = sent = self._at
        depth, quoted, escaped = 0, False, False
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                self._at += 1
                if quoted:
                    quoted = escaped or character != '"'
                    escaped = not escaped and character == "\\"
                elif character == '"':
                    quoted = True
                else:
                    depth += (character in "{[") - (character in "}]")
                if depth == 0 and not quoted:
                    if passing_on:
                        self._add_arguments(self._text[sent : self._at])
                    _loads(self._text[begin : self._at])
                    return self._text[begin : self._at]
            if passing_on:
                self._add_arguments(self._text[sent : self._at])
                sent = self._at
            yield from self._more()


class _Markers:
    """Finds the first of several texts in a text that may go on."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._beginnings = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._longest = max(map(len, markers), default=0)
        ordered = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if markers else None

    def find(self, text: str, *, ended: bool) -> tuple[int, str]:
        """Where the first marker is, and which: the longest there. Nothing where it is not yet clear or there is none,
        with the place up to which that is certain.
        """
        found = self._pattern.search(text) if self._pattern is not None else None
        if not ended:
            for begin in range(max(0, len(text) - self._longest + 1), len(text)):
                if found is not None and begin > found.start():
                    break
                if text[begin:] in self._beginnings:
                    return begin, ""
        return (found.start(), found[0]) if found is not None else (len(text), "")


def _typed(text: str, schema: Any) -> str:
    """The JSON of an argument written as plain text: where a text is expected it is one, else JSON if it is that."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return _dumps(text)
    try:
        _loads(text)
    except _Malformed:
        return _dumps(text)
    return text.strip()


def _object_text(text: str) -> str:
    """The JSON text of an object that may have been written as a string."""
    value = _loads(text)
    if isinstance(value, str):
        text = value
        value = _loads(text)
    if not isinstance(value, dict) or _LONE_SURROGATE.search(text):
        raise _Malformed
    return text


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _Malformed from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
