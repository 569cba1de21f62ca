"""Bodies with too many values are refused before they are validated, with the field and the limit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidRequest
from paddock.gateway.http import sizes
from tests.server import Server, chat_body

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
_USER = {"role": "user", "content": "x"}
_TOOL = {"type": "function", "function": {"name": "f"}}
_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_MADE = {"role": "assistant", "tool_calls": [_CALL] * 257}


def _many(what: Any, count: int) -> list[Any]:
    return [what] * count


@pytest.mark.parametrize(
    ("path", "body", "param", "limit"),
    [
        (CHAT, {"messages": _many(_USER, 8193)}, "messages", 8192),
        (MESSAGES, {"messages": _many(_USER, 8193), "max_tokens": 1}, "messages", 8192),
        (RESPONSES, {"input": _many(_USER, 8193)}, "input", 8192),
        (CHAT, chat_body("x", tools=_many(_TOOL, 257)), "tools", 256),
        (MESSAGES, chat_body("x", max_tokens=1, tools=_many({"name": "f", "input_schema": {}}, 257)), "tools", 256),
        (RESPONSES, {"input": "x", "tools": _many({"type": "function", "name": "f"}, 257)}, "tools", 256),
        (CHAT, {"messages": [{"role": "user", "content": _many({"type": "text", "text": ""}, 1025)}]},
         "messages[0].content", 1024),
        (MESSAGES, {"messages": [{"role": "user", "content": _many({"type": "text", "text": ""}, 1025)}],
                    "max_tokens": 1}, "messages[0].content", 1024),
        (CHAT, {"messages": [_USER, _MADE]}, "messages[1].tool_calls", 256),
        (CHAT, chat_body("x", stop=_many("x", 33)), "stop", 32),
        (CHAT, chat_body("x", stop="x" * 1025), "stop[0]", 1024),
        (MESSAGES, chat_body("x", max_tokens=1, stop_sequences=["x" * 1025]), "stop_sequences[0]", 1024),
        (CHAT, chat_body("x", n=129), "n", 128),
        (NATIVE, {"prompt": "x", "n_cmpl": 129}, "n_cmpl", 128),
        (TEXT, {"prompt": "x", "best_of": 129}, "best_of", 128),
        (CHAT, chat_body("x", logit_bias=_many([1, 1], 1025)), "logit_bias", 1024),
        (NATIVE, {"prompt": "x", "samplers": _many("top_k", 33)}, "samplers", 32),
        (NATIVE, {"prompt": "x", "dry_sequence_breakers": ["x" * 257]}, "dry_sequence_breakers[0]", 256),
        (NATIVE, {"prompt": "x", "grammar": "x" * 65537}, "grammar", 65536),
        (NATIVE, {"prompt": "x", "regex": "x" * 65537}, "regex", 65536),
        (NATIVE, {"prompt": "x", "json_schema": {"const": "x" * 131073}}, "json_schema", 131072),
        (TEXT, {"prompt": _many("x", 257)}, "prompt", 256),
        (NATIVE, {"prompt": _many([], 100_000)}, "prompt", 256),
        ("/tokenize", {"content": _many(1, 2**20 + 1)}, "content", 2**20),
        ("/detokenize", {"tokens": _many(1, 2**20 + 1)}, "tokens", 2**20),
        ("/infill", {"input_prefix": "", "input_suffix": "", "input_extra": _many({"text": ""}, 257)},
         "input_extra", 256),
        (CHAT, {"messages": _many(1, 200_000)}, "messages", 100_000),
        (CHAT, chat_body("x", zzz={str(number): [] for number in range(60_000)}, yyy=_many(0, 60_000)), "yyy", 100_000),
    ],
)  # fmt: skip
def test_fields_over_their_limit(fake_server: Server, path: str, body: dict[str, Any], param: str, limit: int) -> None:
    response = fake_server.client.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert str(limit) in error["message"]


def test_a_body_with_too_many_errors(fake_server: Server) -> None:
    response = fake_server.client.post(CHAT, json=chat_body("x", **{f"f{number}": 1 for number in range(50_000)}))
    assert response.status_code == 400
    assert "50000 values" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, NATIVE, "/tokenize", "/lora-adapters"])
def test_a_body_that_is_nested_too_deeply(fake_server: Server, path: str) -> None:
    for body in (b"[" * 1_000_000, b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"):
        response = fake_server.client.post(path, content=body)
        assert response.status_code == 400
        assert "200 levels" in response.json()["error"]["message"]


def test_arguments_of_a_call_that_are_nested_too_deeply(fake_server: Server) -> None:
    call = {**_CALL, "function": {"name": "f", "arguments": '{"a":' + "[" * 300 + "]" * 300 + "}"}}
    messages = [_USER, {"role": "assistant", "tool_calls": [call]}]
    response = fake_server.client.post(CHAT, json={"messages": messages})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[1].tool_calls[0].function")


_json = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=30,
)


@given(st.dictionaries(st.text(max_size=3), _json, max_size=5), st.integers(0, 60))
def test_values_are_counted(body: dict[str, Any], most: int) -> None:
    """Compared with a simple recursive count."""

    def count(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(count, inner))

    data = json.dumps(body).encode() + b" " * sizes._SMALL
    before = sizes.MOST_VALUES
    try:
        sizes.MOST_VALUES = most  # type: ignore[misc]
        try:
            sizes.refuse_bulk(data, frozenset())
            refused = False
        except InvalidRequest:
            refused = True
    finally:
        sizes.MOST_VALUES = before  # type: ignore[misc]
    assert refused == (count(body) - 1 > most)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b'{"messages":[{"role":"user","content":"x"}]' + b',"zzz":1' * 300_000 + b"}"),
        (CHAT, b"{" + b'"messages":[{"role":"user","content":"x"}],' * 100_000 + b'"n":1}'),
        (NATIVE, b'{"prompt":"x","json_schema":{' + b'"type":"object",' * 300_000 + b'"type":"object"}}'),
        ("/tokenize", b"{" + b'"content":[1,1,1,1],' * 1_000_000 + b'"content":"x"}'),
    ],
)
def test_repeated_names_are_counted(fake_server: Server, path: str, body: bytes) -> None:
    response = fake_server.client.post(path, content=body)
    assert response.status_code == 400
    assert "values, repeated names included" in response.json()["error"]["message"]


def test_separators_inside_strings_are_not_counted(fake_server: Server) -> None:
    text = '\\",[{\\\\' * 60_000 + "\\"
    assert fake_server.client.post("/tokenize", json={"content": text}).status_code == 200
    sizes.refuse_bulk(json.dumps({"content": text}).encode(), frozenset())
    with pytest.raises(InvalidRequest, match="repeated names"):
        repeated = f'{{"a": {json.dumps(text)}' + ', "b": 0' * (2 * sizes.MOST_VALUES + 1) + "}"
        sizes.refuse_bulk(repeated.encode(), frozenset())


@given(st.lists(st.sampled_from(['"', "\\", ",", "[", "x", "\\\\", '\\"', '","']), max_size=60), st.integers(1, 9))
def test_the_count_does_not_depend_on_the_piece_size(parts: list[str], piece: int) -> None:
    """Compared with a reader of single characters."""
    data = json.dumps(["".join(parts), *parts]).encode()
    expected, quoted, escaped = 0, False, False
    for character in data.decode():
        if character == '"' and not escaped:
            quoted = not quoted
        expected += not quoted and character in ",["
        escaped = character == "\\" and not escaped
    before = sizes._PIECE
    try:
        sizes._PIECE = piece
        assert sizes._unquoted(data, (b",", b"["), 10**6) == expected
        enough = expected // 2
        assert sizes._unquoted(data, (b",", b"["), enough) >= min(expected, enough)
    finally:
        sizes._PIECE = before
