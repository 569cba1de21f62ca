"""Bad requests to every route: the answer is a declared one and at worst a 4xx, and no worker is restarted.

Each kind of input has one generator. schemathesis generates what `/openapi.json` describes and what it excludes:
methods, parameters, and JSON bodies with any value in any field. hypothesis generates what no document describes: bytes
that are no JSON, deep and long bodies, and texts that the worker parses. `make fuzz` tries schemathesis for longer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub import Hub, Repository
from tests.server import Server, chat_body
from tests.tiers import examples, full

pytestmark = full

# Accepting invalid requests is not checked: unknown fields are ignored by design.
_CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method,allow_header_conformance"
)
# Endless streams, routes that unload the model, and those that the fake model or the server does not support.
_LEFT_OUT = ("/live", "/models/sse", "/models/unload", "/admin/unload", "/infill", "/api/push")
_LONGER = os.environ.get("PADDOCK_FUZZ_EXAMPLES")

# A valid body for each route.
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
    "/admin/cache/clear": {"model": "fake"},
    "/admin/drain": {"model": "fake", "replica": "a"},
    "/admin/undrain": {"model": "fake", "replica": "a"},
    "/models": {},
    "/v1/models": {},
    "/models/load": {"model": "fake"},
    "/models/unload": {"model": 0},
    "/v1/responses": {"input": [{"role": "user", "content": "x"}], "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/responses/resp_none/cancel": {},
    "/v1/conversations": {"items": [{"role": "user", "content": "x"}], "metadata": {"a": "b"}},
    "/v1/conversations/conv_none": {"metadata": {"a": "b"}},
    "/v1/conversations/conv_none/items": {"items": [{"role": "user", "content": "x"}]},
    "/v1/messages": chat_body("x", max_tokens=2),
    "/v1/messages/count_tokens": chat_body("x"),
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [97]},
    "/apply-template": chat_body("x"),
    "/predict": {"instances": [{"@requestFormat": "tokenize", "content": "x"}]},
    "/v1/streams/lookup": {"conversation_ids": ["a"]},
    "/v1/mcp/call": {"server": "none", "tool": "none", "arguments": {"a": 1}},
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
    "/api/chat": chat_body("say: x", options={"num_predict": 2}),
    "/api/generate": {"prompt": "x", "options": {"num_predict": 2}},
    "/api/embed": {"input": "x"},
    "/api/embeddings": {"prompt": "x"},
    "/api/show": {"model": "fake"},
    "/api/create": {"model": "made", "from": "fake", "parameters": {"temperature": 0}},
    "/api/copy": {"source": "fake", "destination": "copied"},
    "/api/pull": {"model": "fake"},
    "/api/push": {"model": "fake"},
    "/admin/estimate": {"model": "fake", "options": {"n_ctx": 64}},
    "/v1/files": {},
    "/v1/audio/transcriptions": {},
    "/audio/transcriptions": {},
    "/v1/batches": {"input_file_id": "file-none", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    "/v1/batches/batch_none/cancel": {},
    "/v1/messages/batches": {"requests": [{"custom_id": "a", "params": chat_body("x", model="fake", max_tokens=2)}]},
    "/v1/messages/batches/msgbatch_none/cancel": {},
}
_IDS = {
    "slots/0": "slots/{id_slot}", "msgbatch_none": "{message_batch_id}", "batch_none": "{batch_id}",
    "resp_none": "{response_id}", "conv_none": "{conversation_id}",
}  # fmt: skip
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
        self._all = {"text": text, "embedding": embedding, "reranking": reranking}
        self.document: dict[str, Any] = text.client.get("/openapi.json").json()

    def __getitem__(self, kind: str) -> Server:
        return self._all[kind]

    def post(self, path: str, body: bytes) -> httpx.Response:
        return self[_kind_of(path)].client.post(path, content=body)

    def crashes(self) -> float:
        pages = [server.client.get("/metrics").text for server in self._all.values()]
        lines = [
            line for page in pages for line in page.splitlines() if line.startswith("paddock_model_crashes_total{")
        ]
        assert len(lines) >= len(self._all), "each server has a model"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def _kind_of(path: str) -> str:
    return "embedding" if "embedding" in path else "reranking" if "rerank" in path else "text"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("slots")
    with (
        Hub(owner__name=Repository({"a-Q8_0.gguf": b""})) as hub,
        Server(
            *("-m", "fake:", "-np", "2", "--props", "--slot-save-path", str(folder)), env={"HF_ENDPOINT": hub.url}
        ) as text,
        Server("-m", "fake:", "--embedding") as embedding,
        Server("-m", "fake:", "--reranking") as reranking,
    ):
        servers = Servers(text, embedding, reranking)
        for path, body in _GOOD.items():
            assert servers.post(path, _json(body)).status_code in (200, 400, 404, 501), path
        yield servers
        assert servers.crashes() == 0, "workers are unloaded by some requests (keep_alive), but none ends by itself"
        assert text.chat("say: still here")["choices"][0]["message"]["content"] == "still here"


def _fields(document: dict[str, Any], path: str) -> dict[str, Any]:
    """The declared fields of a route's body."""
    body = document["paths"][_template(path)].get("post", {}).get("requestBody")
    schema = body["content"].get("application/json", {}).get("schema", {}) if body else {}
    found: dict[str, Any] = schema.get("properties", {})
    return found


def _template(path: str) -> str:
    """The path of the route in the document."""
    for part, name in _IDS.items():
        path = path.replace(part, name)
    return path.partition("?")[0]


def _alike(document: dict[str, Any], paths: list[str]) -> set[str]:
    """The routes whose fields are all fields of another route, with the same types."""
    found: set[str] = set()
    for path in paths:
        fields = _fields(document, path)
        others = [_fields(document, other) for other in paths if other != path and other not in found]
        if fields and any(fields.items() <= other.items() for other in others):
            found.add(path)
    return found


def _check(response: httpx.Response) -> None:
    """An answer or an error in our format. In a stream: no error that is the server's fault."""
    if response.status_code != 200:
        # 501: the fake model cannot infill.
        assert 400 <= response.status_code < 500 or response.status_code == 501, response.text
        error = response.json()["error"]
        if response.url.path.startswith("/api/"):
            assert isinstance(error, str)
        else:
            assert set(error) - {"n_prompt_tokens", "n_ctx"} == {"message", "type", "param", "code"}
    assert "server_error" not in response.text
    assert "unavailable_error" not in response.text


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()


def test_every_route_with_a_body_has_an_example(servers: Servers) -> None:
    posts = {path for path, methods in servers.document["paths"].items() if "post" in methods}
    assert posts == {_template(path) for path in _GOOD}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["text", "embedding", "reranking"])
def test_generated_requests(servers: Servers, kind: str, tmp_path: Path) -> None:
    """The systematic values of each field are tried at one of the routes that have it."""
    paths = [path for path in servers.document["paths"] if path not in _LEFT_OUT and _kind_of(path) == kind]
    alike = _alike(servers.document, paths)
    (tmp_path / "schemathesis.toml").write_text(
        f"""
        [phases]
        examples.enabled = false
        stateful.enabled = false
        [[operations]]
        include-path = {json.dumps(sorted(alike))}
        phases.coverage.enabled = {str(_LONGER is not None).lower()}
        """
    )
    servers[kind].client.get("/openapi.json")  # made at the first request, which takes a while on a busy machine
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{servers[kind].url}/openapi.json"),
            *(word for path in paths for word in ("--include-path", path)),
            *("--seed", "1", "--max-examples", _LONGER or "15", "--checks", _CHECKS),
            *("--generation-database", "none", "--suppress-health-check", "all", "--continue-on-failure"),
            *("--request-timeout", "100"),  # of a busy machine
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    tried = re.search(r"(\d+) generated", done.stdout)
    assert tried is not None
    assert int(tried[1]) > (1000 if kind == "text" else 100)


@st.composite
def _broken(draw: st.DrawFn) -> tuple[str, bytes]:
    """A route, and a body that is random, truncated or corrupted."""
    path = draw(_PATHS)
    whole = bytearray(_json(_GOOD[path]))
    at = draw(st.integers(0, len(whole) - 1))
    return path, draw(
        st.binary(max_size=100)
        | st.just(bytes(whole[:at]))
        | st.binary(min_size=1, max_size=1).map(lambda byte: bytes(whole[:at]) + byte + bytes(whole[at + 1 :]))
    )


@examples(500)
@given(_broken())
def test_any_bytes(servers: Servers, broken: tuple[str, bytes]) -> None:
    _check(servers.post(*broken))


@examples(500)
@given(_PATHS, st.data())
def test_texts_that_the_worker_parses(servers: Servers, path: str, data: st.DataObject) -> None:
    names = sorted(_NEARLY.keys() & _fields(servers.document, path).keys()) or ["zzz"]
    changed = {name: data.draw(_NEARLY.get(name, _values)) for name in data.draw(st.sets(st.sampled_from(names)))}
    good = _GOOD[path]
    _check(servers.post(path, _json({**good, **changed} if isinstance(good, dict) else changed)))


def test_deep_and_long_bodies_and_numbers(servers: Servers) -> None:
    bodies = (
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt": ' + b"9" * 10_000 + b"}",
        b'{"zzz": ' + b"[" * 150 + b"]" * 150 + b"}",
        b"{" + b",".join(b'"%d": 1' % number for number in range(5000)) + b"}",
        b'{"content": ["' + b'x","' * 5000 + b'"]}',
    )
    for path in sorted(_GOOD.keys() - _alike(servers.document, sorted(_GOOD))):
        for body in bodies:
            _check(servers.post(path, body))
        for name in _fields(servers.document, path) if isinstance(_GOOD[path], dict) else ():
            _check(servers.post(path, _json({**_GOOD[path], name: 10**30})))
