"""Any single change of a file with receipts is found, without a model."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paddock.receipts import Checker, MalformedLine, SigningKey, canonical, chain_line, parse, receipt_hash, reply_of
from tests.receipts.samples import batch, reply
from tests.tiers import examples

_KEY = SigningKey.new()
_TEXTS = ["Hello.", 'A horse 🐎 named "Max".\n', "", "0", "zwölf"]
_SIGNED, _UNSIGNED = batch(_TEXTS, _KEY), batch(_TEXTS)
_MESSAGES = batch(_TEXTS, _KEY, messages=True)


def _problems(
    lines: list[dict[str, Any]] | list[bytes], public_key: str | None = None, last: str | None = None
) -> list[str]:
    """All problems of a file, one of which may be that it is malformed."""
    checker = Checker(public_key)
    found: list[str] = []
    written = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    try:
        for checked in checker.check_all(written, last):
            found += [f"line {checked.number}: {problem}" for problem in checked.problems]
    except MalformedLine as error:
        return [*found, str(error)]
    return found


@pytest.mark.parametrize("lines", [_SIGNED, _UNSIGNED, _MESSAGES])
def test_what_nobody_changed_has_no_problem(lines: list[dict[str, Any]]) -> None:
    assert _problems(lines) == []
    assert _problems([reply("a", [1]), reply("b", [2])]) == [], "replies in any order"
    checker = Checker()
    for line in lines:
        checker.check(json.dumps(line).encode())
    assert checker.last == receipt_hash(reply_of(lines[-1])["receipt"])
    errored: dict[str, Any] = {"custom_id": "x", "result": {"type": "errored", "error": {}}}
    failed: dict[str, Any] = {"custom_id": "y", "response": None, "error": {}}
    assert _problems([errored, failed, *lines]) == []


@examples(1000)
@given(st.data(), st.sampled_from([_SIGNED, _UNSIGNED, _MESSAGES]))
def test_any_changed_value_is_found(data: st.DataObject, lines: list[dict[str, Any]]) -> None:
    """Of an unsigned last line somebody can change the receipt and nothing shows it, so that is left out."""
    is_signed = lines is not _UNSIGNED
    changed = copy.deepcopy(lines)
    number = data.draw(st.integers(0, len(lines) - 1))
    places = list(_places(changed[number]))
    if not is_signed and number == len(lines) - 1:
        places = [place for place in places if "receipt" not in place]
    *path, name = data.draw(st.sampled_from(places))
    inside: Any = changed[number]
    for part in path:
        inside = inside[part]
    old = inside[name]
    match data.draw(st.sampled_from(["replace", "remove"])):
        case "replace":
            values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
            inside[name] = data.draw(values | st.text() | st.just([]) | st.just({}) | _near(old))
        case _:
            del inside[name]
    assume(_form(changed) != _form(lines))
    assert _problems(changed, _KEY.public if is_signed else None)


@examples(1000)
@given(st.data(), st.sampled_from([_SIGNED, _MESSAGES]))
def test_any_changed_byte_is_found(data: st.DataObject, lines: list[dict[str, Any]]) -> None:
    whole = b"\n".join(json.dumps(line, ensure_ascii=False).encode() for line in lines)
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
    try:
        assume([canonical(parse(line)) for line in changed.split(b"\n")] != [canonical(line) for line in lines])
    except ValueError:
        pass
    assert _problems(changed.split(b"\n"), _KEY.public)


@pytest.mark.parametrize("lines", [_SIGNED, _UNSIGNED, _MESSAGES])
def test_the_order_of_lines(lines: list[dict[str, Any]]) -> None:
    for at in range(len(lines) - 1):
        assert _problems([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]), "swapped"
        assert _problems(lines[:at] + lines[at + 1 :]), "removed"
        assert _problems([*lines[: at + 1], lines[at], *lines[at + 1 :]]), "repeated"
    assert _problems([*lines, lines[-1]])
    assert _problems([*lines, reply("more", [1])])
    other = batch(["x", "y"], _KEY)
    assert _problems([*lines[:2], other[1], *lines[3:]]), "of another batch"


def test_a_line_without_a_receipt() -> None:
    stripped = copy.deepcopy(_SIGNED)
    del stripped[-1]["response"]["body"]["receipt"]
    real = receipt_hash(_receipt(_SIGNED[-1]))
    for last in (None, real):
        assert [problem[:22] for problem in _problems(stripped, last=last)] == ["line 5: it has no rece"]
    stripped = copy.deepcopy(_SIGNED)
    del stripped[1]["response"]["body"]["receipt"]
    assert [problem[:6] for problem in _problems(stripped)] == ["line 2", "line 3"]
    assert _problems([{"custom_id": "a", "response": {"body": {}}}]), "nothing is shown without a receipt"


@given(removed=st.sets(st.integers(0, 4)), wanted=st.sets(st.integers(0, 4)), knows_last=st.booleans())
def test_a_removed_receipt_is_told_from_one_that_never_was(
    removed: set[int], wanted: set[int], knows_last: bool
) -> None:
    """Some lines of the batch have receipts (`wanted`), and some of these are removed afterwards."""
    written = batch(_TEXTS, _KEY, without=set(range(5)) - wanted)
    receipts = [line["response"]["body"].get("receipt") for line in written]
    last = next((receipt_hash(one) for one in reversed(receipts) if one is not None), None)
    changed = copy.deepcopy(written)
    for number in removed & wanted:
        del changed[number]["response"]["body"]["receipt"]
    problems = _problems(changed, last=last if knows_last else None)
    left = wanted - removed
    found = {int(problem[5]) - 1 for problem in problems}
    assert removed & wanted <= found, "each is found"
    if not removed & wanted:
        # Without the hash of the last receipt, one may have been removed after it.
        unknown = set() if knows_last and left else set(range(max(left, default=-1) + 1, 5))
        assert found == unknown


def test_the_key() -> None:
    assert _problems(_SIGNED, _KEY.public) == []
    assert "another key" in _problems(_SIGNED, SigningKey.new().public)[0]
    assert "not signed" in _problems(_UNSIGNED, _KEY.public)[0]
    forged = copy.deepcopy(_SIGNED[0])
    forged["response"]["body"]["choices"][0]["message"]["content"] = "Goodbye."
    del forged["response"]["body"]["receipt"]["signature"]
    forged, _ = chain_line(forged, None, SigningKey.new())
    assert any("another key" in problem for problem in _problems([forged], _KEY.public))


def test_replies_put_together_from_a_stream() -> None:
    body = reply("Hello.", [1])
    body["receipt"] |= {"reply_sha256": None}
    assert _problems([body]) == []
    body["id"] = "another"
    assert _problems([body]) == [], "it covers the text only"
    body["choices"][0]["message"]["content"] = "Hello!"
    assert "text of answer 0" in _problems([body])[0]


@examples(1000)
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(MalformedLine, match=r"^line 1: "):
        if not Checker().check(data).problems:
            raise AssertionError("it was taken for a receipt")
        raise MalformedLine("line 1: it has no receipt")


@examples(1000)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(
    st.sampled_from(
        ["receipt", "response", "body", "custom_id", "result", "message", "format", "answers", "choices", "signature"]
    ),
    inner,
) | st.lists(inner), max_leaves=20))  # fmt: skip
def test_any_json(value: Any) -> None:
    try:
        checked = Checker().check(json.dumps(value).encode())
    except MalformedLine as error:
        assert str(error).startswith("line 1: ")
    else:
        assert checked.problems


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "line 1: it is not valid JSON"),
        (b"[]", "line 1: it must be a JSON object"),
        (b'"a"', "line 1: it must be a JSON object"),
        (b"{", "line 1: it is not valid JSON"),
        (b"\xff{}", "line 1: byte 1 is not UTF-8"),
        (b'{"a": 1, "a": 2}', "line 1: it is not valid JSON: an object has the name 'a' twice"),
        (b'{"a": "\\ud800"}', "line 1: it is not valid JSON: a text has half of a surrogate pair"),
        (b'{"custom_id": "a", "response": {}}', "line 1: response.body must be an object"),
        (b'{"custom_id": "a", "result": {"type": "succeeded"}}', "line 1: result.message must be an object"),
        (b'{"receipt": 5}', "line 1: receipt: Expected `object`, got `int`"),
        (b'{"receipt": {}}', "line 1: receipt: Object missing required field `format`"),
        (b'{"receipt": {"format": "paddock-receipt/9"}}', "line 1: the receipt has the format 'paddock-receipt/9'"),
    ],
)
def test_malformed_lines(line: bytes, problem: str) -> None:
    assert _problems([line])[0].startswith(problem)


def test_errors_of_a_line_in_the_middle() -> None:
    with pytest.raises(MalformedLine, match=r"^line 3: it is not valid JSON"):
        checker = Checker()
        for line in (*_SIGNED[:2], "{"):
            checker.check((line if isinstance(line, str) else json.dumps(line)).encode())


def _receipt(line: dict[str, Any]) -> dict[str, Any]:
    receipt: dict[str, Any] = line["response"]["body"]["receipt"]
    return receipt


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inside in items:
        yield (*path, name)
        yield from _places(inside, (*path, name))


def _near(old: Any) -> st.SearchStrategy[Any]:
    match old:
        case bool() | None:
            return st.just(not old)
        case int() | float():
            return st.sampled_from([old + 1, old - 1, -old])
        case str():
            return st.sampled_from([old + " ", old[1:], old.upper(), f"{old}0"])
    return st.just(old)


def _form(lines: list[dict[str, Any]]) -> list[bytes]:
    return [canonical(line) for line in lines]
