"""`--lenient` takes what llama-server takes; without it Paddock refuses by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.http.lenient import CLAMPED, IGNORED, rename, repair
from tests.gateway.odd_requests import CHAT, odd_requests
from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server, chat_body

HEADER = "x-paddock-ignored-fields"


@pytest.fixture(scope="module")
def lenient_server() -> Iterator[Server]:
    with Server("-m", "fake:", "--lenient", "-np", "2") as server:
        yield server


@pytest.mark.parametrize(("path", "body"), list(odd_requests()))
def test_odd_requests_are_answered(lenient_server: Server, path: str, body: dict[str, Any]) -> None:
    response = lenient_server.client.post(path, json=body)
    assert response.status_code == 200, response.text


def test_the_header_names_what_was_changed(lenient_server: Server, fake_server: Server) -> None:
    body = chat_body("hi", temperature=-1, top_p=3, stop=5, guided_json={}, foo=1, max_tokens=2)
    response = lenient_server.client.post(CHAT, json=body)
    assert set(response.headers[HEADER].split(", ")) == {"temperature", "top_p", "stop", "guided_json", "foo"}
    refused = fake_server.client.post(CHAT, json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] in body


def test_names_of_other_endpoints_are_understood(lenient_server: Server) -> None:
    chat = lenient_server.client.post(CHAT, json=chat_body("hi", n_predict=3)).json()
    assert chat["usage"]["completion_tokens"] == 3
    several = lenient_server.client.post("/completion", json={"prompt": "hi", "n_predict": 2, "n": 2}).json()
    assert [answer["tokens_predicted"] for answer in several] == [2, 2]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (CHAT, chat_body("x", max_tokens="3"), "max_tokens"),
        (CHAT, chat_body("x", temperature="0.7"), "temperature"),
        (CHAT, chat_body("x", stop=["a"] * 50), "stop"),
        (CHAT, chat_body("x", stream="yes"), "stream"),
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": 5}, "prompt"),
        ("/completion", {"prompt": "x", "n_predict": -2}, "n_predict"),
        ("/completion", {"prompt": "x", "grammar": "root ::= ("}, "grammar"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_what_is_refused_all_the_same(lenient_server: Server, path: str, body: Any, param: str) -> None:
    response = lenient_server.client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_llama_server_answers_the_same_requests(lenient_server: Server, tmp_path: Path, demo_model: Path) -> None:
    """The table of odd requests is llama-server's behaviour."""
    with LlamaServer(llama_server_binary(), demo_model, "-np", "2") as server:
        for path, body in odd_requests():
            response = httpx.post(f"{server.url}{path}", json=body, timeout=60)
            assert response.status_code == 200, (path, body, response.text)


# ── the repair itself ────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.sampled_from(sorted(CLAMPED)), st.floats(), st.sampled_from(["ge", "le"]), st.integers())
def test_a_number_out_of_range_becomes_the_nearest(name: str, value: float, key: str, bound: int) -> None:
    content: dict[str, Any] = {name: value}
    problem = {"type": "greater_than_equal", "loc": (name,), "ctx": {key: bound}}
    assert repair(content, [problem], _remove) == ([name], [])
    assert content == {name: bound}


@given(st.text(), st.text(), st.sampled_from(["missing", "string_type", "too_long", "json_invalid"]))
def test_other_problems_remain(name: str, other: str, kind: str) -> None:
    content = {name: "x"}
    problem = {"type": kind, "loc": (other,)}
    changed, left = repair(content, [problem], _remove)
    is_ignored = name == other and name in IGNORED and kind != "too_long"
    assert (changed, left) == (([other], []) if is_ignored else ([], [problem]))


@given(st.dictionaries(st.sampled_from(["n_predict", "max_tokens", "n", "n_cmpl"]), st.integers()))
def test_a_known_name_is_kept(content: dict[str, int]) -> None:
    renamed = dict(content)
    rename(renamed, {"max_tokens": None, "n": None})
    assert renamed.keys() <= {"max_tokens", "n"}
    assert all(renamed[name] == content[name] for name in content.keys() & renamed.keys())


def _remove(content: dict[str, Any], place: tuple[Any, ...]) -> str:
    raise AssertionError("nothing is unknown here")
