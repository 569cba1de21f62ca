"""The messages of MCP: events in any pieces, results as texts, names of functions."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.mcp.messages import (
    BadMessage,
    CallResult,
    EventReader,
    RemoteError,
    decode,
    function_names,
    is_request,
    reply_to,
    result_in,
    result_of,
    tools_in,
)

_LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=8)


@given(
    st.lists(st.lists(_LINES, min_size=1, max_size=3), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_events_are_the_same_in_any_pieces(events: list[list[str]], end: str, cuts: list[int]) -> None:
    written = "".join(
        f": comment{end}event: message{end}" + "".join(f"data: {line}{end}" for line in lines) + end for lines in events
    )
    stream = written.encode() + (b": a line that ends the last event\n\n" if end == "\r" else b"")
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = EventReader()
    pieces = [stream[start:stop] for start, stop in pairwise(places)]
    found = [data.decode() for piece in pieces for data in reader.feed(piece)]
    assert found == ["\n".join(lines) for lines in events]


def test_an_event_without_its_end_is_none() -> None:
    reader = EventReader()
    assert list(reader.feed(b"data: a\n")) == []
    assert list(reader.feed(b"\ndata:b\ndata: c\n\nid: 1\n\n")) == [b"a", b"b\nc"]


@given(st.binary(max_size=40))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        messages = decode(data)
    except BadMessage:
        return
    assert all(isinstance(message, dict) for message in messages)


def test_the_response_to_a_request_is_found_among_other_messages() -> None:
    others: list[dict[str, Any]] = [
        {"method": "notifications/progress"},
        {"id": 7, "method": "ping"},
        {"id": 6, "result": {"a": 1}},
    ]
    assert result_in(others, 7) is None
    assert result_in([*others, {"id": 7, "result": {"b": 2}}], 7) == {"b": 2}
    assert [is_request(message) for message in others] == [False, True, False]
    with pytest.raises(RemoteError, match="no such tool"):
        result_in([{"id": 7, "error": {"code": 1, "message": "no such tool"}}], 7)
    with pytest.raises(RemoteError, match="unknown error"):
        result_in([{"id": 7, "error": 5}], 7)
    with pytest.raises(BadMessage, match="without a result"):
        result_in([{"id": 7, "result": []}], 7)


def test_only_pings_of_a_server_are_granted() -> None:
    assert json.loads(reply_to({"id": "x", "method": "ping"})) == {"jsonrpc": "2.0", "id": "x", "result": {}}
    refused = json.loads(reply_to({"id": 1, "method": "sampling/createMessage"}))
    assert (refused["id"], refused["error"]["code"]) == (1, -32601)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": []}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "image", "mimeType": "image/png", "data": "x"}]}, "[image, image/png: not shown]"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "words"}}]}, "words"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "x"}}]}, "[resource: not shown]"),
        ({"content": [{"type": "resource_link", "name": "a", "uri": "file:///a"}]}, "a: file:///a"),
        ({"structuredContent": {"n": 1}}, '{"n":1}'),
        ({"structuredContent": {"n": 1}, "content": [{"type": "text", "text": "one"}]}, "one"),
        ({"content": [{}]}, "[None: not shown]"),
    ],
)
def test_results_become_texts(result: dict[str, Any], text: str) -> None:
    assert result_of(result) == CallResult(text, is_error=False)
    assert result_of(result | {"isError": True}).is_error


def test_results_and_lists_that_cannot_be_read_are_refused() -> None:
    for content in (5, [5], "text"):
        with pytest.raises(BadMessage):
            result_of({"content": content})
    pages: list[dict[str, Any]] = [{}, {"tools": [{"name": "a"}]}, {"tools": {}}, {"tools": [], "nextCursor": 5}]
    for page in pages:
        with pytest.raises(BadMessage, match="cannot be read"):
            tools_in(page)


@given(st.lists(st.text(max_size=80), max_size=8))
def test_functions_have_different_names_that_every_client_accepts(tools: list[str]) -> None:
    names = function_names("notes", tools)
    assert len(names) == len(tools)
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"notes__[A-Za-z0-9_-]{0,57}", name) for name in names)


def test_plain_names_stay_as_they_are() -> None:
    assert function_names("a", ["b", "c.d", "c/d"]) == ["a__b", "a__c_d", "a__c_d_2"]
