from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import load_settings
from paddock_lab.client import _CONTENT, CHAT, Address, Answer, Response, _request
from paddock_lab.servers import entrants
from paddock_lab.serving.keys import OTHER_KEY, USUAL_KEY, write_keys
from paddock_lab.serving.report import Better, Measure, Row, Table, as_json, compare, ratio, summary
from paddock_lab.serving.scenarios import Session, Settings

_DELTAS = [{"role": "assistant", "content": None}, {"content": "Grüße"}, {"content": ' "content":"'}, {}]
_USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
_EVENTS = [
    *(json.dumps({"choices": [{"delta": delta}], "usage": None}, ensure_ascii=False).encode() for delta in _DELTAS),
    json.dumps({"choices": [], "usage": _USAGE}).encode(),
    b"[DONE]",
]
_BODY = b": a comment\n\n" + b"".join(b"data: " + event + b"\n\n" for event in _EVENTS)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def _fed(pieces: list[bytes]) -> tuple[Response, list[bytes]]:
    response = Response()
    return response, [payload for piece in pieces for payload in response.feed(piece)]


def _chunked(body: bytes, cuts: list[int]) -> bytes:
    chunks = [b"%x;note=1\r\n%b\r\n" % (len(piece), piece) for piece in _cut(body, cuts) if piece]
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


@given(st.lists(st.integers(0, 2000)), st.lists(st.integers(0, 4000)))
def test_chunked_events_come_whole_however_they_are_cut(chunks: list[int], pieces: list[int]) -> None:
    response, payloads = _fed(_cut(_chunked(_BODY, chunks), pieces))
    assert (response.status, response.ended, payloads) == (200, True, _EVENTS)


@given(st.lists(st.integers(0, 2000)), st.booleans())
def test_plain_events_come_whole_however_they_are_cut(pieces: list[int], with_length: bool) -> None:
    length = b"Content-Length: %d\r\n" % len(_BODY) if with_length else b""
    response, payloads = _fed(_cut(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + _BODY, pieces))
    assert payloads == _EVENTS
    assert (response.ended, response.ends_by_closing) == (with_length, not with_length)


@given(st.lists(st.integers(0, 200)))
def test_a_refusal_keeps_what_it_says(pieces: list[int]) -> None:
    data = b'HTTP/1.1 400 Bad Request\r\ncontent-length: 15\r\n\r\n{"error":"data"}'[:-1]
    response, payloads = _fed(_cut(data, pieces))
    assert (response.status, response.ended, payloads) == (400, True, [])
    assert response.body == b'{"error":"data"'


def test_only_events_with_text_count_and_the_rest_is_read_afterwards() -> None:
    assert [bool(_CONTENT.search(event)) for event in _EVENTS] == [False, True, True, False, False, False]
    assert _CONTENT.search(b'{"delta":{"reasoning_content":"so"}}')
    assert not _CONTENT.search(b'{"delta":{"content": ""}}')
    answer = Answer(sent=1.0, done=4.0, times=[1.5, 3.0], payloads=_EVENTS)
    assert answer.text == 'Grüße "content":"'
    assert (answer.first_token, answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (0.5, 2, 7, 3)


def test_without_usage_the_events_are_counted() -> None:
    answer = Answer(times=[1.0, 2.0, 3.0], payloads=_EVENTS[:4])
    assert (answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (3, None, None)


@pytest.mark.parametrize(
    ("better", "paddock", "peer", "expected"),
    [
        (Better.HIGHER, 30.0, 20.0, 1.5),
        (Better.LOWER, 20.0, 30.0, 1.5),
        (Better.LOWER, 30.0, 15.0, 0.5),
        (Better.LOWER, 0.0, 1.0, None),
        (Better.NEITHER, 2.0, 1.0, None),
    ],
)
def test_above_one_means_that_paddock_is_better(
    better: Better, paddock: float, peer: float, expected: float | None
) -> None:
    assert ratio(better, paddock, peer) == expected


def test_the_comparison_is_with_the_best_peer() -> None:
    values = {"paddock": {0: 1.0, 1: 2.0, 2: 1.0}, "slow": {0: 9.0, 1: 9.0, 2: 9.0}, "fast": {0: 3.0, 1: 1.0, 2: 4.0}}
    faster = compare(Row("burst", "first token", "s", Better.LOWER, values), "paddock", ["slow", "fast"])
    assert faster is not None
    assert (faster.peer, faster.ratio, faster.lowest, faster.highest) == ("fast", 3.0, 0.5, 4.0)
    higher = compare(Row("streams", "rate", "1/s", Better.HIGHER, values), "paddock", ["slow", "fast"])
    assert higher is not None
    assert higher.peer == "slow"


def test_rounds_that_one_of_them_failed_are_left_out() -> None:
    row = Row("stall", "gap", "s", Better.LOWER, {"paddock": {1: 1.0}, "peer": {0: 1.0, 1: 2.0, 2: 3.0}})
    found = compare(row, "paddock", ["peer"])
    assert found is not None
    assert (found.ratio, found.lowest, found.highest) == (2.0, 2.0, 2.0)
    assert compare(row, "other", ["peer"]) is None
    assert compare(row, "paddock", []) is None


def test_the_summary_has_a_line_for_each_metric() -> None:
    table = Table()
    for number, value in enumerate((100.0, 120.0, 140.0)):
        table.add("streams1", "paddock", number, [Measure("rate", "1/s", Better.HIGHER, value)])
        table.add("streams1", "peer", number, [Measure("rate", "1/s", Better.HIGHER, 100.0)])
    table.add("memory", "peer", 0, [Measure("all", "MiB", Better.LOWER, 50.0)])
    _, first, second = summary(table.rows, ["paddock"], ["peer"]).splitlines()
    assert first.split() == ["streams1", "rate", "1/s", "120", "100", "1.20", "(1.00..1.40)", "peer"]
    assert second.split() == ["memory", "all", "MiB", "-", "50.0", "-"]
    assert json.loads(json.dumps(as_json(table.rows)))[0]["values"]["paddock"] == {"0": 100.0, "1": 120.0, "2": 140.0}


def test_servers_are_named_and_their_commands_filled_in() -> None:
    named, unnamed, url = entrants(("np8=run -m {model} --x '{\"a\": 1}'", "run --y=2", "http://h:1"), "peer")
    assert (named.name, unnamed.name, url.name) == ("np8", "peer2", "peer3")
    assert named.command({"model": "a b.gguf"}) == ["run", "-m", "a b.gguf", "--x", '{"a": 1}']
    assert (named.is_url, url.is_url) == (False, True)


def test_what_is_asked_is_asked_with_the_key(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.json")
    keys = load_settings(file=tmp_path / "keys.json").server.keys
    assert [said.key for said in keys.values()] == [USUAL_KEY, OTHER_KEY]
    head, _, body = _request(Address("h", 1, api_key=USUAL_KEY), CHAT, {"n": 1}, "close").partition(b"\r\n\r\n")
    assert f"Authorization: Bearer {USUAL_KEY}".encode() in head.split(b"\r\n")
    assert json.loads(body) == {"n": 1}
    assert b"Authorization" not in _request(Address("h", 1), CHAT, {}, "close")


def test_servers_get_the_same_words_but_for_how_they_begin() -> None:
    first, second = (Session(Address("h", 1), Settings(), "burst 0").words(100).split() for _ in range(2))
    assert len(first) == len(second) == 100
    assert first[6:] == second[6:]
    assert first[:6] != second[:6]
