"""Tool calls as they are written, in each of their shapes → names and the JSON of arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paddock.text.reply.reader import Reading, dumps
from paddock.text.reply.schemas import member_schema
from paddock.text.reply.shapes import (
    BracedCalls,
    Calls,
    NamedCalls,
    NestedCalls,
    ObjectCalls,
    PythonCalls,
    TaggedCalls,
)
from paddock.text.reply.values import ValueReader, object_text, typed
from paddock.types import CallDelta, Tool

_NAME_KEYS = frozenset({"name", "tool_name", "function"})
_ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_LONGEST_HEADER = 300
_KEY = re.compile(r"[\w.$-]*")
_PLACEHOLDER = re.compile(r"\{\w+\}")


@dataclass(slots=True)
class Parsed:
    """What a piece of text has added to a reply."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class CallReader(ValueReader):
    """Reads calls. What it raises means that they are none."""

    def __init__(self, text: str, tools: Sequence[Tool], call_id: Callable[[int], str]) -> None:
        super().__init__(text)
        self._tools = {tool.name: tool for tool in tools}
        self._call_id = call_id
        self._mark = 0
        """Where the call begins that is being read."""
        self._count = 0
        self._named = False
        """Whether the call that is being read has been announced."""
        self._parsed = Parsed()

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
                case NestedCalls():
                    yield from self._nested_call(calls)
                case PythonCalls():
                    yield from self._python_calls()
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

    def _add_argument(self, key: str, value: str, seen: set[str]) -> None:
        """One of an object that has been begun."""
        if key in seen:
            self._refuse()
        self._add_arguments(f"{', ' if seen else ''}{dumps(key)}: {value}")
        seen.add(key)

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
            self._add_arguments(object_text(arguments or "{}"))

    def _arguments(self) -> Reading[None]:
        """The arguments' JSON, passed on as it comes; or a string of it, as some models write it."""
        if (yield from self._peek()) == '"':
            self._add_arguments(object_text((yield from self._value())))
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
        schema = self._tools[name].parameters
        self._add_arguments("{")
        seen: set[str] = set()
        while not (yield from self._follows(calls.closing)):
            yield from self._expect(calls.key_opening)
            about = yield from self._until(calls.value_mark, longest=_LONGEST_HEADER)
            key = re.split(r'["<]', about)[0].strip()
            value = yield from self._tagged_value(calls)
            is_text = 'string="true"' in about or 'type="string"' in about
            value = dumps(value) if is_text else typed(value, member_schema(schema, key, schema), schema)
            self._add_argument(key, value, seen)
        self._add_arguments("}")
        self._end_call()

    def _tagged_name(self, calls: TaggedCalls) -> Reading[str]:
        if not calls.name_end.strip():
            name = yield from self._until("<", longest=_LONGEST_HEADER)
            self._at -= 1
            return name.strip()
        first, *others = _PLACEHOLDER.split(calls.name_end.strip())
        name = yield from self._until(first, longest=_LONGEST_HEADER)
        for other in others:
            yield from self._until(other, longest=_LONGEST_HEADER)
        return name.strip()

    def _tagged_value(self, calls: TaggedCalls) -> Reading[str]:
        begin = self._at
        if calls.cdata and (yield from self._follows("<![CDATA[")):
            text = yield from self._until("]]>")
            yield from self._expect(calls.value_closing)
            return text
        self._at = begin
        raw = yield from self._until(calls.value_closing.strip())
        return raw.removeprefix("\n").removesuffix("\n")

    # ── calls that are almost JSON ───────────────────────────────────────────────────────────────────────────────────

    def _braced_call(self, calls: BracedCalls) -> Reading[None]:
        name = yield from self._until("{", longest=_LONGEST_HEADER)
        self._at -= 1
        self._begin_call(name.strip())
        self._add_arguments(dumps((yield from self._almost_json(calls.quote))))
        yield from self._close(calls.closing)
        self._end_call()

    # ── calls with tags in tags ──────────────────────────────────────────────────────────────────────────────────────

    def _nested_call(self, calls: NestedCalls) -> Reading[None]:
        name = yield from self._until(calls.name_end.strip(), longest=_LONGEST_HEADER)
        self._begin_call(name.strip())
        schema = self._tools[name.strip()].parameters
        self._add_arguments("{")
        seen: set[str] = set()
        while not (yield from self._follows(calls.closing)):
            yield from self._expect(calls.prefix)
            key = yield from self._tag()
            value = yield from self._nested(calls, key, member_schema(schema, key, schema), schema)
            self._add_argument(key, dumps(value), seen)
        self._add_arguments("}")
        self._end_call()

    # ── calls in Python ──────────────────────────────────────────────────────────────────────────────────────────────

    def _python_calls(self) -> Reading[None]:
        """One of them, or a list."""
        array = yield from self._follows("[")
        while True:
            name = yield from self._until("(", longest=_LONGEST_HEADER)
            self._begin_call(name.strip())
            self._add_arguments("{")
            seen: set[str] = set()
            while not (yield from self._follows(")")):
                if seen:
                    yield from self._expect(",")
                key = yield from self._run_of(_KEY)
                yield from self._expect("=")
                self._add_argument(key, dumps((yield from self.literal())), seen)
            self._add_arguments("}")
            self._end_call()
            if not array or (yield from self._follows("]")):
                return
            yield from self._expect(",")
