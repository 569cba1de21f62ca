"""Argument values that are not JSON: Python literals, and plain text whose type the schema tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paddock.text.reply.reader import LONE_SURROGATE, Malformed, Reader, Reading, dumps, loads
from paddock.text.reply.schemas import has_type

_BARE_LITERAL = re.compile(r"[^\s,\])}]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}


def read_literal(reader: Reader) -> Reading[Any]:
    """Read a literal of Python or JSON."""
    first = yield from reader.peek()
    if first in ("'", '"'):
        return (yield from _read_string(reader))
    if (yield from reader.follows("{")):
        return dict((yield from reader.items("}", lambda: _read_pair(reader))))
    for opening, closing in ("[]", "()"):
        if (yield from reader.follows(opening)):
            return (yield from reader.items(closing, lambda: read_literal(reader)))
    word = yield from reader.run_of(_BARE_LITERAL)
    return _CONSTANTS[word] if word in _CONSTANTS else loads(word)


def _read_pair(reader: Reader) -> Reading[tuple[str, Any]]:
    if (yield from reader.peek()) not in ("'", '"'):
        reader.refuse()
    key = yield from _read_string(reader)
    yield from reader.expect(":")
    return key, (yield from read_literal(reader))


def _read_string(reader: Reader) -> Reading[str]:
    """Read a quoted string. Models forget to escape quotation marks: one ends the string only if a delimiter or the end
    of the text follows.
    """
    quote = reader.text[reader.at]
    reader.at += 1
    begin = reader.at
    while True:
        piece = yield from reader.until(quote)
        end = reader.at - 1
        escapes = len(piece) - len(piece.rstrip("\\"))
        if escapes % 2 == 0 and (yield from reader.peek()) in ("", ",", ":", ")", "]", "}"):
            return _unescape(reader.text[begin:end])
        reader.at = end + 1


def to_json(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """The JSON of an argument that is written as plain text: a string if the schema says so, otherwise the value that
    the text reads as.
    """
    if has_type(schema, "string", root):
        return dumps(text)
    try:
        loads(text)
    except Malformed:
        return dumps(_literal_or_text(text))
    return text.strip()


def _literal_or_text(text: str) -> Any:
    """Some templates print values as Python does, and so do their models."""
    reader = Reader(text)
    reader.ended = True
    reading = read_literal(reader)
    try:
        next(reading)
    except StopIteration as result:
        return text if text[reader.at :].strip() else result.value
    except (Malformed, RecursionError):
        return text
    raise AssertionError("the text is complete")


def _unescape(text: str) -> str:
    text = _ESCAPE.sub(_character, text)
    if LONE_SURROGATE.search(text):  # or a pair that is one character
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise Malformed from None
    return text


def _character(escape: re.Match[str]) -> str:
    if digits := escape[1] or escape[2]:
        return chr(int(digits, 16))
    return _ESCAPES.get(escape[3], escape[3] if escape[3] in "'\"\\/" else escape[0])
