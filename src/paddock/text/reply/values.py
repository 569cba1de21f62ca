"""Arguments that are not written as JSON: almost JSON, Python, plain texts, and tags in tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from paddock.text.reply.reader import BARE_VALUE, LONE_SURROGATE, Malformed, Reader, Reading, dumps, loads
from paddock.text.reply.schemas import has_type, item_schema, member_schema
from paddock.text.reply.shapes import NestedCalls

_BARE_KEY = re.compile(r"[\w.$-]*")
_BARE_LITERAL = re.compile(r"[^\s,\])}]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_LONGEST_TAG = 300


class ValueReader(Reader):
    """Reads values, each kind by a method of its own."""

    def _almost_json(self, quote: str) -> Reading[Any]:
        """JSON, or the same with bare keys and this quotation mark."""
        if (yield from self._follows(quote)):
            return (yield from self._until(quote))
        if (yield from self._peek()) == '"':
            return loads((yield from self._value()))
        if (yield from self._follows("{")):
            pairs: dict[str, Any] = {}
            while not (yield from self._follows("}")):
                if pairs:
                    yield from self._expect(",")
                key = yield from self._almost_json_key(quote)
                yield from self._expect(":")
                if key in pairs:
                    self._refuse()
                pairs[key] = yield from self._almost_json(quote)
            return pairs
        if (yield from self._follows("[")):
            items: list[Any] = []
            while not (yield from self._follows("]")):
                if items:
                    yield from self._expect(",")
                items.append((yield from self._almost_json(quote)))
            return items
        return loads((yield from self._run_of(BARE_VALUE)))

    def _almost_json_key(self, quote: str) -> Reading[str]:
        if (yield from self._follows(quote)):
            return (yield from self._until(quote))
        if (yield from self._peek()) == '"':
            return str(loads((yield from self._value())))
        return (yield from self._run_of(_BARE_KEY))

    # ── Python ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def literal(self) -> Reading[Any]:
        """A literal of Python, or of JSON."""
        first = yield from self._peek()
        if first in ("'", '"'):
            return (yield from self._quoted(first))
        if (yield from self._follows("{")):
            pairs: dict[str, Any] = {}
            while not (yield from self._follows("}")):
                if pairs:
                    yield from self._expect(",")
                if (yield from self._peek()) not in ("'", '"'):
                    self._refuse()
                key = yield from self._quoted(self._text[self._at])
                yield from self._expect(":")
                pairs[key] = yield from self.literal()
            return pairs
        if first in ("[", "("):
            closing = {"[": "]", "(": ")"}[first]
            yield from self._expect(first)
            items: list[Any] = []
            while not (yield from self._follows(closing)):
                if items:
                    yield from self._expect(",")
                items.append((yield from self.literal()))
            return items
        word = yield from self._run_of(_BARE_LITERAL)
        return _WORDS[word] if word in _WORDS else loads(word)

    def _quoted(self, quote: str) -> Reading[str]:
        """A text in quotation marks. One inside it, escaped by nobody, is the last only where a text can end."""
        begin = self._at = self._at + 1
        while True:
            if self._at == len(self._text):
                yield from self._more()
            elif self._text[self._at] == "\\":
                self._at += 2
                while self._at > len(self._text):
                    yield from self._more()
            elif self._text[self._at] != quote:
                self._at += 1
            else:
                end = self._at
                self._at += 1
                if (yield from self._peek()) in ("", ",", ":", ")", "]", "}"):
                    return _unescaped(self._text[begin:end])
                self._at = end + 1

    # ── tags in tags ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _tag(self) -> Reading[str]:
        """The name in an opening tag, of which the prefix has been read."""
        yield from self._expect("<")
        return (yield from self._until(">", longest=_LONGEST_TAG))

    def _nested(self, calls: NestedCalls, name: str, schema: Any, root: Mapping[str, Any]) -> Reading[Any]:
        """What stands in the element of this name, up to its closing tag."""
        if has_type(schema, "string", root):
            return (yield from self._until(calls.closes(name)))
        closing = calls.closes(name).removeprefix(calls.prefix)
        text = yield from self._until(calls.prefix)
        if (yield from self._follows(closing)):
            if not text.strip() and has_type(schema, "array", root):
                return []
            if not text.strip() and has_type(schema, "object", root):
                return {}
            return json.loads(typed(text, schema, root))
        if text.strip():
            self._refuse()
        names: list[str] = []
        values: list[Any] = []
        as_array = has_type(schema, "array", root)
        while True:
            inner = yield from self._tag()
            about = item_schema(schema, root) if as_array else member_schema(schema, inner, root)
            names.append(inner)
            values.append((yield from self._nested(calls, inner, about, root)))
            yield from self._expect(calls.prefix)
            if (yield from self._follows(closing)):
                break
        if as_array or (set(names) == {"item"} and not has_type(schema, "object", root)):
            return values
        if len(set(names)) < len(names):
            self._refuse()
        return dict(zip(names, values, strict=True))


def typed(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """The JSON of an argument written as plain text: where a text is expected it is one, else what it reads as."""
    if has_type(schema, "string", root):
        return dumps(text)
    try:
        loads(text)
    except Malformed:
        return dumps(_literal_or_text(text))
    return text.strip()


def _literal_or_text(text: str) -> Any:
    """Some templates print values as Python does, and so do their models."""
    reader = ValueReader(text)
    reader.end()
    reading = reader.literal()
    try:
        next(reading)
    except StopIteration as result:
        return result.value if reader.at_end else text
    except (Malformed, RecursionError):
        return text
    raise AssertionError("it has all of the text")


def _unescaped(text: str) -> str:
    text = _ESCAPE.sub(_character, text)
    if LONE_SURROGATE.search(text):  # or two that are one character
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise Malformed from None
    return text


def _character(escape: re.Match[str]) -> str:
    if digits := escape[1] or escape[2]:
        return chr(int(digits, 16))
    return _ESCAPES.get(escape[3], escape[3] if escape[3] in "'\"\\/" else escape[0])


def object_text(text: str) -> str:
    """The JSON text of an object that may have been written as a string."""
    value = loads(text)
    if isinstance(value, str):
        text = value
        value = loads(text)
    if not isinstance(value, dict) or LONE_SURROGATE.search(text):
        raise Malformed
    return text
