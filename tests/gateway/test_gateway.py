"""The HTTP API over HTTP, with the fake engine."""

from __future__ import annotations

import json
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from paddock.replicas.shapes import Props
from tests.server import Server, chat_body, client_of, events, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"


def _error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "request_id"}
    assert set(body["error"]) - {"n_prompt_tokens", "n_ctx"} == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_completion_has_the_format_of_the_seed(fake_server: Server) -> None:
    body = fake_server.chat("say: The capital of France is Paris.", model="llama-2-7b", temperature=0.7, max_tokens=512)
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_600_000_000
    assert body.pop("system_fingerprint").startswith("fp_")
    timings = body.pop("timings")
    usage = body.pop("usage")
    assert timings["predicted_n"] == usage["completion_tokens"]
    assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len("The capital of France is Paris.") + 1, "the end token is counted too"
    message = {"role": "assistant", "content": "The capital of France is Paris."}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert body == {"object": "chat.completion", "model": "llama-2-7b", "choices": [choice]}


def _stream(server: Server, text: str, **options: Any) -> list[tuple[str, str]]:
    with server.client.stream("POST", CHAT, json=chat_body(text, stream=True, **options)) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(events(response))


def test_a_stream_has_the_format_of_the_seed(fake_server: Server) -> None:
    seen = _stream(fake_server, "say: Once upon a time")
    assert seen[-1] == ("message", "[DONE]")
    chunks = [json.loads(data) for _, data in seen[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in chunks)
    assert chunks[0]["choices"] == [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Once upon a time"
    assert chunks[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]


def test_usage_at_the_end_of_a_stream_if_requested(fake_server: Server) -> None:
    seen = _stream(fake_server, "say: hi", stream_options={"include_usage": True})
    chunks = [json.loads(data) for _, data in seen[:-1]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_stop_max_tokens_and_seed(fake_server: Server) -> None:
    choice = fake_server.chat("say: one two three", stop=" th")["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "stop")
    choice = fake_server.chat("say: one two three", stop=["zzz", "two"])["choices"][0]
    assert choice["message"]["content"] == "one "
    choice = fake_server.chat("say: one two three", max_tokens=5)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one t", "length")
    same = [fake_server.chat("anything", seed=s)["choices"][0]["message"]["content"] for s in (1, 1, 2)]
    assert same[0] == same[1] != same[2]
    free = {fake_server.chat("anything")["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(free) == 3, "without a seed every answer differs"
    greedy = {fake_server.chat("x", do_sample=False)["choices"][0]["message"]["content"] for _ in range(2)}
    assert len(greedy) == 1


def test_unicode_is_not_split_in_a_stream(fake_server: Server) -> None:
    text = "Größe 🦙 — 木"
    assert fake_server.chat(f"say: {text}")["choices"][0]["message"]["content"] == text
    parts = [
        json.loads(data)["choices"][0]["delta"].get("content", "")
        for _, data in _stream(fake_server, f"say: {text}")[:-1]
    ]
    assert "".join(parts) == text
    assert not any("�" in part for part in parts)


def test_concurrent_requests_get_their_own_answers(fake_server: Server) -> None:
    with ThreadPoolExecutor(16) as pool:
        texts = [f"number {n} of many" for n in range(48)]
        answers = pool.map(lambda text: fake_server.chat(f"say: {text}")["choices"][0]["message"]["content"], texts)
        assert list(answers) == texts


def test_harmless_labels_are_accepted(fake_server: Server) -> None:
    fake_server.chat("say: x", user="u", metadata={"a": "b"}, n=1, tools=[], response_format={"type": "text"})


def test_models_and_health(fake_server: Server) -> None:
    fake_server.chat("say: x")
    (card,) = fake_server.client.get("/v1/models").json()["data"]
    assert (card["id"], card["status"], card["meta"]["architecture"]) == ("fake", {"value": "loaded"}, "fake")
    assert card["kind"] == "generation"
    health = fake_server.client.get("/health").json()
    assert health.pop("uptime") >= 0
    assert health.pop("slots_available") == health.pop("slots_total") >= 4
    assert health == {"status": "ok", "model_loaded": True, "loaded_models": ["fake"]}


def test_one_model_is_loaded_when_the_server_starts() -> None:
    """As with llama-server. When the idle timeout has unloaded the model, the server is still ready."""
    env = {"PADDOCK_MODEL_MANAGER__CHECK_INTERVAL": "1"}
    with Server("-m", "fake:", "--idle-timeout", "5", lazy=False, env=env) as server:
        wait_for(lambda: _health(server).get("model_loaded"), 20, "the load at the start")
        wait_for(lambda: _health(server).get("model_loaded") is False, 20, "the model to be unloaded")
        assert (_health(server)["status"], _health(server)["loaded_models"]) == ("ok", [])
        assert server.chat("say: back")["choices"][0]["message"]["content"] == "back"


def test_health_is_503_until_the_model_is_loaded() -> None:
    with Server("-m", "fake:load=30", lazy=False) as server:
        response = server.client.get("/health")
        error = _error(response, 503)
        assert (error["message"], error["type"]) == ("Loading model", "unavailable_error")
        assert response.headers["retry-after"] == "1"


@full
def test_health_is_503_until_all_preloaded_models_are_loaded(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    models = {"a": {"path": "fake:"}, "b": {"path": "fake:load=4"}, "c": {"path": "fake:"}}
    config.write_text(json.dumps({"model_manager": {"models": models}}))
    with Server("--config", str(config), "--preload", "a,b") as server:
        assert _error(server.client.get("/health"), 503)["message"] == "Loading model"
        wait_for(lambda: server.client.get("/health").status_code == 200, 20, "the models to be loaded")
        assert sorted(_health(server)["loaded_models"]) == ["a", "b"]


def _health(server: Server) -> dict[str, Any]:
    health: dict[str, Any] = server.client.get("/health").json()
    return health


def test_health_is_503_while_the_only_model_loads() -> None:
    with Server("-m", "fake:load=4") as server, ThreadPoolExecutor(1) as pool:
        assert server.client.get("/health").status_code == 200
        asking = pool.submit(server.chat, "say: hi")
        wait_for(lambda: server.client.get("/health").status_code == 503, 20, "the load to start")
        response = server.client.get("/health")
        assert response.headers["retry-after"] == "1"
        assert _error(response, 503)["code"] == "model_loading"
        assert asking.result()["choices"][0]["message"]["content"] == "hi"


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"not json", None),
        (b"[1, 2]", None),
        (b'"text"', None),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', None),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None),
        (b"{}", "messages"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": "hi"}', "messages"),
        (b'{"messages": [{"role": "robot", "content": "hi"}]}', "messages[0].role"),
        (b'{"messages": [{"role": "user"}]}', "messages[0]"),
        (b'{"messages": [{"role": "user", "content": 3}]}', "messages[0].content"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "messages[0].content[0].image_url"),
        (b'{"messages": [{"role": "user", "content": [{"type": "video"}]}]}', "messages[0].content[0]"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": "0.7"}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": -1}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}', "temperature"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "top_p": 2}', "top_p"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}', None),
        (b'{"messages": [{"role": "user", "content": "hi"}], "stop": ""}', "stop[0]"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "stream": "yes"}', "stream"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "seed": 1e99}', "seed"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "tools": [{}]}', "tools[0].type"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": 1}}', "response_format.type"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "stream_options": {"include_usage": true}}', None),
    ],
)  # fmt: skip
def test_bad_bodies_name_the_field(fake_server: Server, body: bytes, param: str | None) -> None:
    error = _error(fake_server.client.post(CHAT, content=body), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


def test_ten_megabytes_of_text(fake_server: Server) -> None:
    error = _error(fake_server.client.post(CHAT, json=chat_body("x" * 10_000_000)), 400)
    assert error["code"] == "context_length_exceeded"
    assert "8192" in error["message"]
    assert error["param"] == "messages"


def test_a_body_over_the_limit(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"server": {"max_body_bytes": 1000}}')
    with Server("-m", "fake:", "--config", str(tmp_path / "c.json")) as server:
        assert _error(server.client.post(CHAT, json=chat_body("x" * 2000)), 413)["code"] == "request_too_large"
        chunks = (b"x" * 100 for _ in range(50))
        assert _error(server.client.post(CHAT, content=chunks), 413)["code"] == "request_too_large"
        server.chat("say: still here")


def test_a_server_can_be_a_replica_of_another_one(fake_server: Server) -> None:
    """Also one whose model has no quantisation."""
    props = msgspec.json.decode(fake_server.client.get("/props").content, type=Props)
    assert props.model_ftype == ""


def test_unknown_routes_methods_and_models(fake_server: Server, tmp_path: Path) -> None:
    assert _error(fake_server.client.get("/v1/nothing"), 404)["code"] == "not_found"
    assert _error(fake_server.client.get(CHAT), 405)["code"] == "method_not_allowed"
    assert fake_server.client.put("/props").headers["allow"] == "GET, POST"
    (tmp_path / "Model-A.gguf").write_bytes(b"GGUF but no model")
    with Server("--models-dir", str(tmp_path)) as server:
        error = _error(server.client.post(CHAT, json=chat_body("hi", model="Model-B")), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        error = _error(server.client.post(CHAT, json=chat_body("hi", model="Model-A")), 503)
        assert error["code"] == "model_load_failed"
        assert server.client.get("/health").json()["status"] == "ok"


# ── access ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# the team's\nfrom-file\n\n")
    with Server(
        "-m", "fake:", "--api-key", "sesame", "--api-key", "tulip", "--api-key-file", str(tmp_path / "keys")
    ) as server:
        assert server.client.get("/health").status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic sesame"},
            {"x-api-key": "wrong"},
        ):
            response = server.client.get("/v1/models", headers=headers)
            assert _error(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        for headers in (
            {"authorization": "Bearer sesame"},
            {"authorization": "bearer tulip"},
            {"x-api-key": "from-file"},
        ):
            assert server.client.get("/v1/models", headers=headers).status_code == 200
        assert not any("sesame" in line or "from-file" in line for line in server.output)


def test_cors(fake_server: Server) -> None:
    preflight = {"origin": "http://localhost:5000", "access-control-request-method": "POST"}
    response = fake_server.client.options(CHAT, headers=preflight)
    assert response.headers["access-control-allow-origin"] == "http://localhost:5000"
    response = fake_server.client.get("/health", headers={"origin": "http://evil.example"})
    assert "access-control-allow-origin" not in response.headers


def test_tls(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    with Server("-m", "fake:", "--ssl-key-file", str(key), "--ssl-cert-file", str(cert)) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{server.url}/health", verify=context, timeout=200).status_code == 200


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_logs_are_json_on_stdout(tmp_path: Path) -> None:
    with Server("-m", "fake:", "--log-format", "json", "--parallel", "4", "--metrics") as server:
        server.chat("say: x")
        server.stop()
        lines = [json.loads(line) for line in server.output]
    assert all({"timestamp", "level", "message"} <= set(line) for line in lines)
    request = next(line for line in lines if line["message"] == "request")
    assert request["duration_ms"] > 0
    assert request["request_id"].startswith("req_")


def test_every_response_has_a_request_id(fake_server: Server) -> None:
    ids = {fake_server.client.get(path).headers["x-request-id"] for path in ("/health", "/v1/models", "/nothing")}
    assert len(ids) == 3


# ── sharing one model ────────────────────────────────────────────────────────────────────────────────────────────────


def test_slots_show_running_requests_and_load_nothing() -> None:
    with Server("-m", "fake:delay=0.02", "-np", "3") as server:
        assert server.client.get("/slots").json() == []
        assert server.workers() == []
        body = chat_body("say: " + "x" * 200, stream=True, id_slot=1)
        with server.client.stream("POST", CHAT, json=body) as response:
            chunks = events(response)
            next(chunks)
            with client_of(server.url) as other:
                slots = other.get("/slots").json()
                health = other.get("/health").json()
        assert [slot["id"] for slot in slots] == [0, 1, 2]
        assert [slot["is_processing"] for slot in slots] == [False, True, False]
        assert slots[1]["n_prompt_tokens"] > 200
        assert slots[1]["n_past"] >= slots[1]["n_prompt_tokens"]
        assert (health["slots_total"], health["slots_available"]) == (3, 2)


def test_validation_errors_do_not_show_pydantic(fake_server: Server) -> None:
    response = fake_server.client.post(CHAT, json=chat_body("hi", logit_bias={"-1": 1}))
    message = "logit_bias: '-1' is not a token id or a text of 1 to 256 characters"
    assert response.json()["error"]["message"] == message


def test_answers_count_in_the_queue() -> None:
    # With a delay, so that the answers to the first prompt are still running when the second arrives.
    with Server("-m", "fake:delay=0.05", "-np", "2", "--max-queue", "4") as server:
        server.chat("say: hi", n=6)
        assert len(server.chat("say: hi", n=6)["choices"]) == 6, "the answers of the first request are released"
        response = server.client.post("/v1/chat/completions", json=chat_body("say: hi", n=7))
        assert response.status_code == 400
        assert "n is 7, but this model has 2 slots and a queue of 4" in response.json()["error"]["message"]
        body = {"prompt": ["one", "two"], "n": 4, "max_tokens": 2}
        response = server.client.post("/v1/completions", json={**body, "max_tokens": 100})
        assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
        assert len(server.client.post("/v1/completions", json={**body, "n": 3}).json()["choices"]) == 6


def test_a_full_queue_is_429_with_retry_after() -> None:
    with Server("-m", "fake:delay=0.3", "-np", "1", "--max-queue", "1") as server:
        for _ in range(2):
            server.chat("say: 12345678")  # each letter is a step of 0.3 s
        body = chat_body("say: " + "x" * 200, stream=True)
        with (
            server.client.stream("POST", CHAT, json=body) as first,
            server.client.stream("POST", CHAT, json=body) as second,
        ):
            assert (first.status_code, second.status_code) == (200, 200)
            refused = server.client.post(CHAT, json=chat_body("say: x"))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id_slot", 999),
        ("logit_bias", {"999999": 1}),
        ("logit_bias", {"": 1}),
        ("logit_bias", [["x" * 257, 1]]),
        ("logit_bias", {"x": True}),
        ("logit_bias", [[1]]),
        ("logit_bias", [[5, False], [5, 1e39]]),
        ("n", 0),
        ("mirostat", 3),
        ("samplers", ["top_k", "luck"]),
        ("samplers", "kz"),
        ("adaptive_target", 1.1),
        ("adaptive_decay", 1),
        ("repeat_penalty", 0),
        ("top_logprobs", 21),
    ],
)
def test_an_invalid_parameter_is_named(fake_server: Server, field: str, value: object) -> None:
    response = fake_server.client.post(CHAT, json=chat_body("say: x", **{field: value}))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)


def test_several_answers_have_their_own_index(fake_server: Server) -> None:
    body = fake_server.chat("say: x", n=3)
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (0, "x"),
        (1, "x"),
        (2, "x"),
    ]
