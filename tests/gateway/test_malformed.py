"""Malformed bodies, to every route with a body: the answer is at worst a 4xx, and the worker survives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server import Server, chat_body
from tests.tiers import examples

_GOOD: dict[str, Any] = {
    "/v1/chat/completions": chat_body("say: x", max_tokens=2),
    "/chat/completions": chat_body("say: x", max_tokens=2),
    "/v1/chat/completions/input_tokens": chat_body("x"),
    "/chat/completions/input_tokens": chat_body("x"),
    "/responses": {"input": "say: x", "max_output_tokens": 2},
    "/responses/input_tokens": {"input": "x"},
    "/messages": chat_body("say: x", max_tokens=2),
    "/messages/count_tokens": chat_body("x"),
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/completion": {"prompt": "x", "n_predict": 2},
    "/completions": {"prompt": "x", "n_predict": 2},
    "/admin/load": {"model": "fake"},
    "/admin/unload": {"model": 0},
    "/admin/reload": {},
    "/admin/drain": {"model": "fake", "replica": "a"},
    "/admin/undrain": {"model": "fake", "replica": "a"},
    "/models": {},
    "/v1/models": {},
    "/models/load": {"model": "fake"},
    "/models/unload": {"model": 0},
    "/v1/responses": {"input": [{"role": "user", "content": "x"}], "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages": chat_body("x", max_tokens=2),
    "/v1/messages/count_tokens": chat_body("x"),
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [97]},
    "/apply-template": chat_body("x"),
    "/lora-adapters": [],
    "/props": {},
    "/slots/0?action=save": {"filename": "a"},
    "/slots/0?action=restore": {"filename": "a"},
    "/slots/0?action=erase": {},
    "/v1/embeddings": {"input": "x"},
    "/embedding": {"content": "x"},
    "/embeddings": {"content": "x"},
    "/rerank": {"query": "x", "documents": ["y"]},
    "/reranking": {"query": "x", "documents": ["y"]},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v1/reranking": {"query": "x", "documents": ["y"]},
}
_PATHS = st.sampled_from(sorted(_GOOD))

_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
    | st.sampled_from([-1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1e308, -0.0, "", "a", "user", "json_object", "\0"])
)  # fmt: skip
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "role", "content", "id", "schema"]), inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
_schemas = st.dictionaries(
    st.sampled_from(
        ["type", "items", "properties", "enum", "const", "anyOf", "$ref", "pattern", "minimum", "required"]
    ),
    st.sampled_from(["object", "string", "#", "[a", "a|b"]) | _values,
    max_size=3,
)
# Nearly valid values, for fields whose content the worker parses.
_NEARLY: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.text(max_size=5) | st.lists(st.integers(-2, 300) | st.text(max_size=3) | _values, max_size=4),
    "messages": st.lists(
        st.dictionaries(st.sampled_from(["role", "content", "name"]), st.just("user") | _values), max_size=2
    ),
    "json_schema": _schemas,
    "response_format": st.fixed_dictionaries({"type": st.just("json_object"), "schema": _schemas}),
    "grammar": st.text('root:="ab|()[]*+{}1, \n', max_size=12).map(lambda text: f"root ::= {text}"),
    "regex": st.text("ab|()[]*+?{}1,^$\\d.", max_size=10),
    "logprobs": st.integers(-1, 6),
    "echo": st.booleans(),
    "n": st.integers(0, 3),
    "best_of": st.integers(0, 3),
    "n_probs": st.integers(-1, 3),
    "n_cmpl": st.integers(0, 3),
    "response_fields": st.lists(st.text(max_size=3) | st.just("timings/prompt_n"), max_size=2),
    "stream": st.booleans(),
}


class Servers:
    """One server for each kind of model, so that every route has one that serves it."""

    def __init__(self, text: Server, embedding: Server, reranking: Server) -> None:
        self.text = text
        self._embedding = embedding
        self._reranking = reranking

    def post(self, path: str, body: bytes) -> httpx.Response:
        return self._for(path).client.post(path, content=body)

    def workers(self) -> list[list[int]]:
        return [server.workers() for server in (self.text, self._embedding, self._reranking)]

    def _for(self, path: str) -> Server:
        if "embedding" in path:
            return self._embedding
        return self._reranking if "rerank" in path else self.text


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("slots")
    with (
        Server("-m", "fake:", "-np", "2", "--props", "--slot-save-path", str(folder)) as text,
        Server("-m", "fake:", "--embedding") as embedding,
        Server("-m", "fake:", "--reranking") as reranking,
    ):
        servers = Servers(text, embedding, reranking)
        for path, body in _GOOD.items():
            assert servers.post(path, _json(body)).status_code in (200, 400), path
        workers = servers.workers()
        assert [len(some) for some in workers] == [1, 1, 1]
        yield servers
        assert servers.workers() == workers, "no worker was restarted"
        assert text.chat("say: still here")["choices"][0]["message"]["content"] == "still here"


@pytest.fixture(scope="module")
def fields(servers: Servers) -> dict[str, list[str]]:
    """The declared fields of each route."""
    document = servers.text.client.get("/openapi.json").json()
    found: dict[str, list[str]] = {}
    for path in _GOOD:
        template = "/slots/{id_slot}" if path.startswith("/slots") else path
        schema = document["paths"][template]["post"]["requestBody"]["content"]["application/json"]["schema"]
        found[path] = sorted(schema.get("properties", {})) or ["zzz"]
    return found


def _check(response: httpx.Response) -> None:
    """An answer or an error in our format. In a stream: no error that is the server's fault."""
    if response.status_code != 200:
        assert 400 <= response.status_code < 500, response.text
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert "server_error" not in response.text
    assert "unavailable_error" not in response.text


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()


def test_every_route_with_a_body_has_an_example(servers: Servers) -> None:
    document = servers.text.client.get("/openapi.json").json()
    posts = {path for path, methods in document["paths"].items() if "post" in methods}
    assert posts == {"/slots/{id_slot}" if path.startswith("/slots") else path for path in _GOOD}


@examples(300)
@given(_PATHS, st.binary(max_size=100))
def test_any_bytes(servers: Servers, path: str, body: bytes) -> None:
    _check(servers.post(path, body))


@examples(300)
@given(_PATHS, _values)
def test_any_json(servers: Servers, path: str, body: Any) -> None:
    _check(servers.post(path, _json(body)))


@examples(1000)
@given(_PATHS, st.data())
def test_any_value_in_any_field(servers: Servers, fields: dict[str, list[str]], path: str, data: st.DataObject) -> None:
    names = data.draw(st.sets(st.sampled_from(fields[path]) | st.text(max_size=5), max_size=3))
    changed = {name: data.draw(_NEARLY.get(name, st.nothing()) | _values) for name in sorted(names)}
    good = _GOOD[path]
    _check(servers.post(path, _json({**good, **changed} if isinstance(good, dict) else changed)))


@examples(200)
@given(_PATHS, st.data())
def test_a_truncated_or_corrupted_body(servers: Servers, path: str, data: st.DataObject) -> None:
    whole = bytearray(_json(_GOOD[path]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        del whole[at:]
    else:
        whole[at] = data.draw(st.integers(0, 255))
    _check(servers.post(path, bytes(whole)))


@pytest.mark.parametrize("path", sorted(_GOOD))
def test_a_deep_and_a_long_body(servers: Servers, path: str) -> None:
    for body in (
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt": ' + b"9" * 10_000 + b"}",
        b'{"zzz": ' + b"[" * 150 + b"]" * 150 + b"}",
        b"{" + b",".join(b'"%d": 1' % number for number in range(5000)) + b"}",
        b'{"content": ["' + b'x","' * 5000 + b'"]}',
    ):
        _check(servers.post(path, body))


def test_numbers_that_exceed_a_machine_word(servers: Servers, fields: dict[str, list[str]]) -> None:
    for path, good in _GOOD.items():
        for name in fields[path] if isinstance(good, dict) else ():
            _check(servers.post(path, _json({**good, name: 10**30})))
