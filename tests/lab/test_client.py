from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock_lab.client import _CONTENT, CHAT, Address, Answer, ChatFailed, EventLines, Response, _request, get, stream
from tests.lab.stand_in import KEY, stand_in, url_of

_BODY = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h:1", Address("h", 1)),
        ("http://h/v1/", Address("h", 80)),
        ("https://h/api/v1", Address("h", 443, tls=True, base="/api")),
        ("https://h:8443", Address("h", 8443, tls=True)),
    ],
)
def test_an_address_leaves_out_v1(url: str, address: Address) -> None:
    assert Address.of(url) == address
    assert Address.of(address.url("/v1")) == address


def test_the_key_is_sent_chunks_are_read_and_a_refusal_has_its_status() -> None:
    with stand_in("Hay", " and", " oats") as server:
        address = Address.of(url_of(server))
        known = replace(address, api_key=KEY)
        assert asyncio.run(get(address, "/v1/models"))["data"][0]["id"] == "stand-in"
        answer = asyncio.run(stream(known, _BODY, usage=False))
        assert (answer.text, answer.finish_reason, answer.prompt_tokens) == ("Hay and oats", "stop", None)
        for refused, usage, status in ((address, False, 401), (known, True, 400)):
            with pytest.raises(ChatFailed) as caught:
                asyncio.run(stream(refused, _BODY, usage=usage))
            assert caught.value.status == status
    assert KEY not in repr(known)


def test_an_empty_answer_is_a_failure_unless_it_is_allowed() -> None:
    with stand_in() as server:
        address = replace(Address.of(url_of(server)), api_key=KEY)
        with pytest.raises(ChatFailed):
            asyncio.run(stream(address, _BODY, usage=False))
        answer = asyncio.run(stream(address, _BODY, usage=False, may_be_empty=True))
        assert (answer.text, answer.deltas, answer.finish_reason) == ("", [], "stop")
        assert answer.first_token == answer.done - answer.sent


# ── reading a response ────────────────────────────────────────────────────────────────────────────────────────────────

_DELTAS = [{"role": "assistant", "content": None}, {"content": "Grüße"}, {"content": ' "content":"'}, {}]
_USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
_EVENTS = [
    *(json.dumps({"choices": [{"delta": delta}], "usage": None}, ensure_ascii=False).encode() for delta in _DELTAS),
    json.dumps({"choices": [], "usage": _USAGE}).encode(),
    b"[DONE]",
]
_STREAM = b": a comment\n\n" + b"".join(b"data: " + event + b"\n\n" for event in _EVENTS)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def _parse(pieces: list[bytes]) -> tuple[Response, bytes]:
    response = Response()
    return response, b"".join(response.feed(piece) for piece in pieces)


def _events(pieces: list[bytes]) -> tuple[Response, list[bytes]]:
    response, lines = Response(), EventLines()
    return response, [payload for piece in pieces for payload in lines.feed(response.feed(piece))]


def _chunked(body: bytes, cuts: list[int]) -> bytes:
    chunks = [b"%x;note=1\r\n%b\r\n" % (len(piece), piece) for piece in _cut(body, cuts) if piece]
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


@given(st.lists(st.integers(0, 2000)), st.lists(st.integers(0, 4000)))
def test_chunked_events_are_parsed_from_any_pieces(chunks: list[int], pieces: list[int]) -> None:
    response, payloads = _events(_cut(_chunked(_STREAM, chunks), pieces))
    assert (response.status, response.ended, payloads) == (200, True, _EVENTS)


@given(st.lists(st.integers(0, 2000)), st.booleans())
def test_plain_events_are_parsed_from_any_pieces(pieces: list[int], with_length: bool) -> None:
    length = b"Content-Length: %d\r\n" % len(_STREAM) if with_length else b""
    response, payloads = _events(_cut(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + _STREAM, pieces))
    assert payloads == _EVENTS
    assert (response.ended, response.ends_by_closing) == (with_length, not with_length)


@given(st.lists(st.integers(0, 200)))
def test_the_body_of_a_refusal_is_kept(pieces: list[int]) -> None:
    data = b'HTTP/1.1 400 Bad Request\r\ncontent-length: 15\r\n\r\n{"error":"data"}'[:-1]
    response, body = _parse(_cut(data, pieces))
    assert (response.status, response.ended, body) == (400, True, b'{"error":"data"')


def test_only_events_with_text_are_counted() -> None:
    assert [bool(_CONTENT.search(event)) for event in _EVENTS] == [False, True, True, False, False, False]
    assert _CONTENT.search(b'{"delta":{"reasoning_content":"so"}}')
    assert not _CONTENT.search(b'{"delta":{"content": ""}}')
    answer = Answer(sent=1.0, done=4.0, times=[1.5, 3.0], payloads=_EVENTS)
    assert answer.text == 'Grüße "content":"'
    assert (answer.first_token, answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (0.5, 2, 7, 3)


def test_without_usage_the_events_are_counted() -> None:
    answer = Answer(times=[1.0, 2.0, 3.0], payloads=_EVENTS[:4])
    assert (answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (3, None, None)


def test_guessed_tokens_are_those_of_the_timings() -> None:
    reported = b'{"choices":[],"timings":{"predicted_n":9,"draft_n":8,"draft_n_accepted":6}}'
    assert Answer(payloads=[*_EVENTS, reported]).drafted_tokens == (8, 6)
    assert Answer(payloads=[*_EVENTS, b'{"choices":[],"timings":{"predicted_n":9}}']).drafted_tokens is None
    assert Answer(payloads=_EVENTS).drafted_tokens is None


def test_a_request_carries_the_key() -> None:
    head, _, body = _request(Address("h", 1, api_key=KEY), CHAT, {"n": 1}, "close").partition(b"\r\n\r\n")
    assert f"Authorization: Bearer {KEY}".encode() in head.split(b"\r\n")
    assert json.loads(body) == {"n": 1}
    assert b"Authorization" not in _request(Address("h", 1), CHAT, {}, "close")
