"""`/openapi.json` describes every route, and real answers match it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

JSON, EVENTS = "application/json", "text/event-stream"
ENDLESS = ("/models/sse", "/live")
PLAIN = (
    "/v1/files/{file_id}/content",
    "/v1/messages/batches/{message_batch_id}/results",
    "/metrics",
    "/v1/stream",
)

VECTORS: dict[str, Any] = {
    "/api/embed": {"input": ["a", "b"]},
    "/api/embeddings": {"prompt": "a"},
    "/v1/embeddings": {"input": ["a", "b"]},
    "/embedding": {"content": "a"},
    "/embeddings": {"content": ["a", "b"]},
}
_RANKING = {"query": "a", "documents": ["b", {"text": "c"}], "return_documents": True}
SCORES: dict[str, Any] = dict.fromkeys(("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"), _RANKING)

_REPLICA = {"model": "fake", "replica": "1"}
REPLICAS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/chat/completions", chat_body("say: x", job_id="job-1")),
    ("POST", "/completion", {"prompt": "x", "n_predict": 2, "job_id": "job-1"}),
    ("POST", "/admin/drain", _REPLICA),
    ("POST", "/admin/undrain", _REPLICA),
    ("GET", "/admin/status", None),
    ("GET", "/slots", None),
]

_LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
_LOOK_FUNCTION = {"name": "look", "parameters": {"type": "object"}}
_USE = {"name": "look", "input_schema": {"type": "object"}}

# Example requests for each route, in this order.
EXAMPLES: list[tuple[str, str, Any]] = [
    ("GET", "/health", None),
    ("POST", "/v1/streams/lookup", {"conversation_ids": ["a"]}),
    ("GET", "/v1/health", None),
    ("GET", "/models", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/fake", None),
    ("GET", "/props", None),
    ("POST", "/predict", {"instances": [{"@requestFormat": "tokenize", "content": "x"}]}),
    ("GET", "/slots", None),
    ("POST", "/v1/chat/completions", chat_body("say: x")),
    ("POST", "/v1/chat/completions", chat_body("say: x", n=2, logprobs=True, top_logprobs=2)),
    ("POST", "/admin/load", {"model": "fake"}),
    ("GET", "/admin/status", None),
    ("GET", "/admin/usage", None),
    ("GET", "/admin/downloads", None),
    ("POST", "/admin/estimate", {"model": "fake", "options": {"n_ctx": 64}}),
    ("GET", "/admin/cache", None),
    ("POST", "/admin/cache/clear", {"model": "fake", "tenant": ""}),
    ("GET", "/v1/usage", None),
    ("GET", "/v1/mcp/tools", None),
    ("POST", "/admin/reload", None),
    ("POST", "/models?reload=1", None),
    ("POST", "/v1/models", None),
    ("POST", "/admin/unload", {"model": "all"}),
    ("POST", "/models/load", {"model": "fake"}),
    ("POST", "/models/unload", {"model": "fake"}),
    ("POST", "/v1/responses", {"input": "say: x"}),
    ("POST", "/v1/responses", {"input": "x", "tools": [_LOOK], "tool_choice": "required"}),
    ("POST", "/v1/responses/input_tokens", {"input": "x"}),
    ("POST", "/v1/chat/completions/input_tokens", chat_body("x")),
    ("POST", "/chat/completions/input_tokens", chat_body("x")),
    ("POST", "/chat/completions", chat_body("say: x")),
    ("POST", "/responses", {"input": "say: x"}),
    ("POST", "/responses/input_tokens", {"input": "x"}),
    ("POST", "/messages", chat_body("say: x", max_tokens=9)),
    ("POST", "/messages/count_tokens", chat_body("x")),
    ("POST", "/v1/messages", chat_body("say: x", max_tokens=9)),
    ("POST", "/v1/messages", chat_body("x", max_tokens=99, tools=[_USE], tool_choice={"type": "any"})),
    ("POST", "/v1/messages/count_tokens", chat_body("x")),
    ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2}),
    ("POST", "/v1/completions", {"prompt": ["x", "y"], "max_tokens": 2, "logprobs": 1, "echo": True}),
    ("POST", "/v1/completions", {"prompt": ["xa", "xb"], "max_tokens": 2, "cache_report": True}),
    ("POST", "/completion", {"prompt": "xc", "n_predict": 2, "cache_report": True}),
    ("POST", "/v1/chat/completions", chat_body("say: y", cache_report=True)),
    ("POST", "/v1/responses", {"input": "say: z", "cache_report": True}),
    ("POST", "/v1/messages", chat_body("say: w", max_tokens=9, cache_report=True)),
    ("POST", "/completion", {"prompt": "x", "n_predict": 2, "n_probs": 2}),
    ("POST", "/completions", {"prompt": ["x", "y"], "n_predict": 2}),
    ("POST", "/completion", {"prompt": "x", "n_predict": 2, "response_fields": ["content"]}),
    ("POST", "/tokenize", {"content": "é"}),
    ("POST", "/tokenize", {"content": "é", "with_pieces": True}),
    ("POST", "/detokenize", {"tokens": [97]}),
    ("POST", "/apply-template", chat_body("x")),
    ("GET", "/lora-adapters", None),
    ("POST", "/lora-adapters", []),
    ("GET", "/models", None),
    ("GET", "/props", None),
    ("GET", "/slots", None),
    ("POST", "/slots/0?action=save", {"filename": "a.bin"}),
    ("POST", "/slots/0?action=restore", {"filename": "a.bin"}),
    ("POST", "/slots/0?action=erase", None),
    ("POST", "/props", {}),
    ("GET", "/api/version", None),
    ("GET", "/api/tags", None),
    ("GET", "/api/ps", None),
    ("POST", "/api/show", {"model": "fake", "verbose": True}),
    ("POST", "/api/chat", chat_body("say: x", stream=False, logprobs=True, top_logprobs=1)),
    ("POST", "/api/chat", chat_body("x", stream=False, tools=[{"type": "function", "function": _LOOK_FUNCTION}])),
    ("POST", "/api/chat", {"stream": False}),
    ("POST", "/api/generate", {"prompt": "say: x", "stream": False, "options": {"seed": 1}}),
    ("POST", "/api/create", {"model": "made", "from": "fake", "system": "s", "stream": False}),
    ("POST", "/api/copy", {"source": "made", "destination": "copied"}),
    ("POST", "/api/pull", {"model": "made", "stream": False}),
    ("DELETE", "/api/delete", {"model": "copied"}),
]
_RESPONSE, _CONVERSATION = "/v1/responses/{response_id}", "/v1/conversations/{conversation_id}"
# In the order in which they are called: what is deleted comes last.
STORED = [
    ("GET", _RESPONSE, None),
    ("GET", f"{_RESPONSE}/input_items", None),
    ("POST", "/v1/conversations", {"items": [{"role": "user", "content": "x"}], "metadata": {"a": "b"}}),
    ("GET", _CONVERSATION, None),
    ("POST", _CONVERSATION, {"metadata": {"a": "c"}}),
    ("POST", f"{_CONVERSATION}/items", {"items": [{"role": "user", "content": "x"}]}),
    ("GET", f"{_CONVERSATION}/items", None),
    ("GET", f"{_CONVERSATION}/items/{{item_id}}", None),
    ("DELETE", f"{_CONVERSATION}/items/{{item_id}}", None),
    ("DELETE", _CONVERSATION, None),
    ("DELETE", _RESPONSE, None),
]
TRANSCRIPTIONS = ("/v1/audio/transcriptions", "/audio/transcriptions")
_MESSAGE_BATCH = "/v1/messages/batches/{message_batch_id}"
MESSAGE_BATCHES = {
    *(("POST", path) for path in ("/v1/messages/batches", f"{_MESSAGE_BATCH}/cancel")),
    *(("GET", path) for path in ("/v1/messages/batches", _MESSAGE_BATCH)),
    ("DELETE", _MESSAGE_BATCH),
}
BATCHES = {
    *(("POST", path) for path in ("/v1/files", "/v1/batches", "/v1/batches/{batch_id}/cancel")),
    *(("GET", path) for path in ("/v1/files", "/v1/files/{file_id}", "/v1/batches", "/v1/batches/{batch_id}")),
    ("DELETE", "/v1/files/{file_id}"),
}
STREAMED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", chat_body("say: hello", logprobs=True, stream_options={"include_usage": True})),
    ("/v1/chat/completions", chat_body("say: hello", timings_per_token=True, return_progress=True)),
    ("/v1/responses", {"input": "say: hello", "include": ["message.output_text.logprobs"]}),
    ("/v1/responses", {"input": "x", "tools": [_LOOK], "tool_choice": "required"}),
    ("/v1/messages", chat_body("say: x", max_tokens=9)),
    ("/v1/messages", chat_body("x", max_tokens=99, tools=[_USE], tool_choice={"type": "any"})),
    ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 2, "logprobs": 1, "return_progress": True}),
    ("/completion", {"prompt": "x", "n_predict": 2, "n_probs": 1, "timings_per_token": True, "return_progress": True}),
    ("/completions", {"prompt": "x", "n_predict": 2}),
    ("/v1/chat/completions", chat_body("say: hollow", cache_report=True)),
    ("/v1/messages", chat_body("say: xy", max_tokens=9, cache_report=True)),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server("-m", "fake:", "-np", "1", "--props", "--slot-save-path", str(tmp_path_factory.mktemp("s"))) as server:
        yield server


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    document: dict[str, Any] = server.client.get("/openapi.json").json()
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _described(path: str) -> str:
    """The path template in the document."""
    path = path.partition("?")[0]
    for fixed, template in (("/slots/", "/slots/{id_slot}"), ("/v1/models/", "/v1/models/{id}")):
        if path.startswith(fixed):
            return template
    return path


def _schema(document: dict[str, Any], method: str, path: str, status: str = "200", kind: str = JSON) -> dict[str, Any]:
    response = document["paths"][_described(path)][method.lower()]["responses"][status]
    return {**response["content"][kind]["schema"], "components": document["components"]}


def _validate(content: Any, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema).validate(content)


def _no_more_than(content: Any, schema: dict[str, Any], components: dict[str, Any]) -> None:
    """The answer has no undeclared field."""
    while "$ref" in schema:
        schema = components["schemas"][schema["$ref"].rpartition("/")[2]]
    if isinstance(content, list) and "items" in schema:
        for item in content:
            _no_more_than(item, schema["items"], components)
    if isinstance(content, dict) and "properties" in schema:
        assert set(content) <= set(schema["properties"]), schema.get("title")
        for name, value in content.items():
            _no_more_than(value, schema["properties"][name], components)


# ── completeness ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_route_is_described(document: dict[str, Any]) -> None:
    operations = list(_operations(document))
    assert len(operations) >= 19
    for method, path, operation in operations:
        where = f"{method} {path}"
        assert operation.get("description"), where
        responses = operation["responses"]
        assert set(responses) == {"204" if where == "DELETE /v1/stream" else "200", "4XX", "5XX"}, where
        assert path in (*ENDLESS, *PLAIN) or responses["200"]["content"][JSON]["schema"], where
        if method == "POST":
            kind = "multipart/form-data" if path in ("/v1/files", *TRANSCRIPTIONS) else JSON
            assert operation["requestBody"]["content"][kind]["schema"], where
    for alternative in ("/v1/chat/completions", "/v1/completions", "/completion", "/infill"):
        assert EVENTS in document["paths"][alternative]["post"]["responses"]["200"]["content"]


def test_every_reference_is_defined(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    assert "$defs" not in text
    for part in text.split('"$ref": "')[1:]:
        kind, _, name = part.partition('"')[0].rpartition("/")
        assert kind == "#/components/schemas"
        assert name in document["components"]["schemas"]
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_reference_page_is_served(server: Server) -> None:
    assert "openapi.json" in server.client.get("/docs").text


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_answers_of_replicas_match_the_document(document: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "paddock.json"
    file.write_text(json.dumps({"model_manager": {"models": {"fake": {"path": "fake:", "replicas": 2}}}}))
    with Server("--config", str(file)) as server:
        for method, path, body in REPLICAS:
            body = body and {"model": "fake", **body}
            response = server.client.request(method, path, json=body, params={"model": "fake"})
            assert response.status_code == 200, (path, response.text)
            schema = _schema(document, method, path)
            _validate(response.json(), schema)
            _no_more_than(response.json(), schema, document["components"])


def test_answers_match_the_document(server: Server, document: dict[str, Any]) -> None:
    for method, path, body in EXAMPLES:
        response = server.client.request(method, path, json=body)
        assert response.status_code == 200, (path, response.text)
        schema = _schema(document, method, path)
        _validate(response.json(), schema)
        _no_more_than(response.json(), schema, document["components"])
    seen = {(method, _described(path)) for method, path, _ in EXAMPLES}
    elsewhere = {("POST", path) for path in ("/infill", "/admin/drain", "/admin/undrain", *VECTORS, *SCORES)} | {
        *(("GET", path) for path in (*ENDLESS, *PLAIN)),
        ("DELETE", "/v1/stream"),
        ("DELETE", "/models"),
        ("POST", "/api/push"),
        *(("GET", path) for path in ("/admin/hub", "/admin/hub/{owner}/{repository}")),
        *BATCHES,
        *MESSAGE_BATCHES,
        *((method, path) for method, path, _ in STORED),
        ("POST", f"{_RESPONSE}/cancel"),  # always refused
        ("POST", "/v1/mcp/call"),  # tests/gateway/test_mcp.py
        *(("POST", path) for path in TRANSCRIPTIONS),  # tests/gateway/test_transcriptions.py
    }
    assert {(method, path) for method, path, _ in _operations(document)} - seen == elsewhere


def test_answers_about_stored_responses_match_the_document(server: Server, document: dict[str, Any]) -> None:
    ids = {"response_id": server.client.post("/v1/responses", json={"input": "say: x"}).json()["id"]}
    for method, path, body in STORED:
        response = server.client.request(method, path.format_map(ids), json=body)
        assert response.status_code == 200, (path, response.text)
        answer, schema = response.json(), _schema(document, method, path)
        _validate(answer, schema)
        _no_more_than(answer, schema, document["components"])
        if path == "/v1/conversations":
            ids["conversation_id"] = answer["id"]
        elif path.endswith("/items") and method == "POST":
            ids["item_id"] = answer["last_id"]


def test_answers_about_batches_match_the_document(server: Server, document: dict[str, Any]) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat_body("say: x")}
    form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": json.dumps(line).encode()}}
    file = server.client.post("/v1/files", **form).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = server.client.post("/v1/batches", json=body).json()["id"]
    wait_for(lambda: server.client.get(f"/v1/batches/{batch}").json()["status"] == "completed", 30, "the batch")
    for method, path in sorted(BATCHES):
        sent: dict[str, Any] = form if path == "/v1/files" and method == "POST" else {}
        if path == "/v1/batches" and method == "POST":
            sent = {"json": body}
        used = server.client.post("/v1/files", **form).json()["id"] if method == "DELETE" else file
        response = server.client.request(method, path.format(file_id=used, batch_id=batch), **sent)
        assert response.status_code == 200, (path, response.text)
        schema = _schema(document, method, path)
        _validate(response.json(), schema)
        _no_more_than(response.json(), schema, document["components"])


def test_answers_about_message_batches_match_the_document(server: Server, document: dict[str, Any]) -> None:
    body = {"requests": [{"custom_id": "a", "params": chat_body("say: x", max_tokens=9)}]}
    batch = server.client.post("/v1/messages/batches", json=body).json()["id"]
    url = f"/v1/messages/batches/{batch}"
    wait_for(lambda: server.client.get(url).json()["processing_status"] == "ended", 30, "the batch")
    for method, path in sorted(MESSAGE_BATCHES, reverse=True):
        sent: dict[str, Any] = {"json": body} if (method, path) == ("POST", "/v1/messages/batches") else {}
        response = server.client.request(method, path.format(message_batch_id=batch), **sent)
        assert response.status_code == 200, (path, response.text)
        schema = _schema(document, method, path)
        _validate(response.json(), schema)
        _no_more_than(response.json(), schema, document["components"])


def test_bodies_match_the_document(document: dict[str, Any]) -> None:
    for method, path, body in EXAMPLES:
        if method == "POST" and body is not None:
            content = document["paths"][_described(path)]["post"]["requestBody"]["content"]
            _validate(body, {**content[JSON]["schema"], "components": document["components"]})


def test_infill_matches_the_document(document: dict[str, Any], tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["infill"]), "-c", "256") as server:
        body = {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}
        _validate(server.client.post("/infill", json=body).json(), _schema(document, "POST", "/infill"))


@full
def test_vectors_and_scores_match_the_document(document: dict[str, Any]) -> None:
    for flag, examples in (("--embedding", VECTORS), ("--reranking", SCORES)):
        with Server("-m", "fake:", flag) as server:
            for path, body in examples.items():
                response = server.client.post(path, json=body)
                assert response.status_code == 200, (path, response.text)
                schema = _schema(document, "POST", path)
                _validate(response.json(), schema)
                _no_more_than(response.json(), schema, document["components"])


@pytest.mark.parametrize(("path", "body"), STREAMED)
def test_events_match_the_document(server: Server, document: dict[str, Any], path: str, body: Any) -> None:
    schema = _schema(document, "POST", path, kind=EVENTS)
    with server.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        seen = [data for _, data in events(response)]
    assert len(seen) > 2
    data = schema["properties"]["data"]
    written, *mark = data.get("anyOf", [data])
    assert (mark == [{"const": "[DONE]"}]) == (seen[-1] == "[DONE]")
    declared = [option for option in written["contentSchema"]["anyOf"] if option.get("type") != "object"]
    for event in seen[:-1] if mark else seen:
        _validate(json.loads(event), {"anyOf": declared, "components": document["components"]})


def test_errors_match_the_document(server: Server, document: dict[str, Any]) -> None:
    for method, path, _ in EXAMPLES:
        if method == "POST":
            response = server.client.post(path, content=b"{")
            if response.status_code != 200:  # a route without a required body
                assert response.status_code == 400
                _validate(response.json(), _schema(document, "POST", path, "4XX"))
