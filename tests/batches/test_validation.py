from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.batches.records import Mistake
from paddock.batches.validation import MOST_MISTAKES, Checked, Validator, parse_line, read_lines
from paddock.errors import InvalidRequest
from tests.tiers import examples

_URL = "/v1/chat/completions"


def _check(body: bytes) -> Checked:
    fields = json.loads(body)
    if "messages" not in fields:
        raise InvalidRequest("messages: Field required", param="messages")
    return Checked(fields.get("model", "m"), body)


def line(**changes: Any) -> bytes:
    fields = {"custom_id": "a", "method": "POST", "url": _URL, "body": {"messages": []}, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def mistakes(content: bytes, *, longest: int = 1000) -> list[Mistake]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_bytes(content)
        validator = Validator(_URL, _check, longest=longest)
        list(validator.lines(path))
        return validator.report()


@pytest.mark.parametrize(
    ("second", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b'{"custom_id": "b",}', "invalid_json_line", None),
        (b"[1, 2]", "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (b"\xff\xfe\x00", "invalid_utf8", None),
        (b"[" * 5000, "invalid_json_line", None),
        (line(custom_id=...), "missing_field", "custom_id"),
        (line(custom_id=7), "invalid_type", "custom_id"),
        (line(custom_id=""), "invalid_custom_id", "custom_id"),
        (line(custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (line(method=...), "missing_field", "method"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url=...), "missing_field", "url"),
        (line(url="/v1/embeddings"), "invalid_url", "url"),
        (line(url="https://example.com/v1/chat/completions"), "invalid_url", "url"),
        (line(body=...), "missing_field", "body"),
        (line(body=[]), "invalid_type", "body"),
        (line(body=None), "invalid_type", "body"),
        (line(body={}), "invalid_request", "body.messages"),
        (line(body={"messages": [], "model": "other"}), "mismatched_model", "body.model"),
        (line(extra=1), "unknown_field", "extra"),
        (line(body={"messages": ["x" * 2000]}), "line_too_long", "body"),
        (line(body={"messages": ["x" * 200_000]}), "line_too_long", None),
    ],
)
def test_a_mistake_is_named_with_its_line_and_field(second: bytes, code: str, param: str | None) -> None:
    found = mistakes(b"\n".join([line(custom_id="first"), second, line(custom_id="third")]))
    assert [(one.code, one.line, one.param) for one in found] == [(code, 2, param)]


def test_all_mistakes_of_a_line_are_reported() -> None:
    found = mistakes(line(custom_id=..., method="GET", url=3, body={}))
    assert [one.param for one in found] == ["custom_id", "method", "url", "body.messages"]


@pytest.mark.parametrize("content", [b"", b"\n", b"  \n\r\n"])
def test_an_empty_file(content: bytes) -> None:
    assert [one.code for one in mistakes(content)] == ["empty_file"]


def test_many_mistakes_are_counted_and_not_all_listed() -> None:
    found = mistakes(b"nonsense\n" * (MOST_MISTAKES + 7))
    assert len(found) == MOST_MISTAKES + 1
    assert found[-1].message.startswith("7 more mistakes")


def test_byte_order_mark_and_windows_line_ends() -> None:
    assert mistakes(b"\xef\xbb\xbf" + line() + b"\r\n" + line(custom_id="b") + b"\r\n") == []


@examples(300)
@given(
    lines=st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")), max_size=12),
    longest=st.integers(1, 60),
)
def test_lines_are_found_where_they_are(lines: list[bytes], longest: int) -> None:
    content = b"\n".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_bytes(content)
        for number, start, data in read_lines(path, longest):
            expected = lines[number - 1]
            if data is None:
                assert len(expected) >= longest
            else:
                assert data.rstrip(b"\n") == expected.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")
                assert content[start : start + len(data)] == data


@given(data=st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_line_is_parsed_or_refused(data: bytes) -> None:
    found = mistakes(data.replace(b"\n", b" "))
    assert all(one.line == 1 or one.code == "empty_file" for one in found)


def test_bodies_keep_their_bytes() -> None:
    data = b'{"custom_id":"a","method":"POST","url":"/x","body":{ "b" : 1.50 , "a":[ ] }}'
    assert bytes(parse_line(data)["body"]) == b'{ "b" : 1.50 , "a":[ ] }'
