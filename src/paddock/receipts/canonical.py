"""One spelling for each JSON value, so that its hash does not depend on how it was written.

The rules are those of RFC 8785: no white space, sorted names, the shortest numbers. One differs: integers are written
with all their digits, since a seed may have 64 bits and a double has 53.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Sequence
from json.encoder import encode_basestring as _quoted
from typing import Any

_DEEPEST = 200
_MOST_DIGITS = 400
"""Of an integer: Python converts long ones in quadratic time, and no double has more."""


def canonical(value: Any) -> bytes:
    """The canonical form of a JSON value. Raises `ValueError` for what JSON cannot hold."""
    parts: list[str] = []
    _write(value, parts.append, 0)
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair, which is no character") from None


def digest(value: Any) -> str:
    """The SHA-256 of its canonical form, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def token_digest(tokens: Sequence[int]) -> str:
    """The SHA-256 of token ids, each as a 32-bit number, little-endian. Raises `ValueError` for other numbers."""
    try:
        numbers = array("i", tokens)
    except (OverflowError, TypeError):
        raise ValueError("a token id is no 32-bit number") from None
    if not _IS_LITTLE_ENDIAN:
        numbers.byteswap()
    return hashlib.sha256(numbers).hexdigest()


_IS_LITTLE_ENDIAN = array("i", [1]).tobytes()[0] == 1


def parse(data: bytes | str) -> Any:
    """Read JSON strictly: a name may be in an object once, and numbers must be finite. Raises `ValueError`."""
    try:
        return json.loads(data, object_pairs_hook=_object, parse_constant=_refuse, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {twice[:80]!r} twice")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _write(value: Any, add: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    match value:
        case None:
            add("null")
        case bool():
            add("true" if value else "false")
        case str():
            add(_quoted(value))
        case int():
            add(int.__repr__(value))
        case float():
            add(_number(value))
        case list() | tuple():
            add("[")
            for place, item in enumerate(value):
                if place:
                    add(",")
                _write(item, add, depth + 1)
            add("]")
        case dict():
            if not all(isinstance(name, str) for name in value):
                raise ValueError("the names of an object must be texts")
            add("{")
            for place, name in enumerate(sorted(value, key=_utf16)):
                add("," if place else "")
                add(_quoted(name))
                add(":")
                _write(value[name], add, depth + 1)
            add("}")
        case _:
            raise ValueError(f"{type(value).__name__} is no JSON value")


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _number(value: float) -> str:
    """A double as JavaScript writes it."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number in JSON")
    if value == 0:
        return "0"
    sign, value = ("-", -value) if value < 0 else ("", value)
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or 0) - (len(digits) - len(digits.lstrip("0")))
    return sign + _placed(digits.strip("0"), point)


def _placed(digits: str, point: int) -> str:
    """0.`digits` times ten to the power of `point`, as ECMAScript's Number::toString."""
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    power = point - 1
    mantissa = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{'+' if power >= 0 else '-'}{abs(power)}"
