"""Ollama's API in detail, with the fake engine; `tests/clients/test_ollama_packages.py` runs its packages against the
demo model.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from paddock.gateway.dialects.ollama.requests import ChatRequest, GenerateRequest
from tests.hub import Hub, Repository
from tests.server import Server, chat_body, wait_for
from tests.tiers import full

BOSS, USER, SLOW = ({"authorization": f"Bearer {key}"} for key in ("boss", "user", "slow"))
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number: int = sock.getsockname()[1]
        return number


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_models: dict[str, Path], port: int) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("ollama") / "config.json"
    models: dict[str, Any] = {
        "caller": {"path": str(tiny_models["caller"]), "n_ctx": 1024},
        "infill": {"path": str(tiny_models["infill"]), "n_ctx": 256},
        "Words-1B.Q4_0": {"path": "fake:", "aliases": ["words:1b"]},
        "vectors": {"path": "fake:", "embedding": True},
        "other": {"path": "fake:"},
    }
    slow = {"key": "slow", "requests_per_minute": 1}
    keys = {
        "slow": slow,
        "boss": {"key": "boss", "admin": True},
        "user": {"key": "user", "models": ["Words*", "vectors"]},
    }
    config.write_text(json.dumps({"server": {"keys": keys}, "model_manager": {"models": models}}))
    with Server("--config", str(config), "--ollama-port", str(port)) as server:
        server.client.headers.update(BOSS)
        yield server


def _post(server: Server, path: str, **body: Any) -> httpx.Response:
    return server.client.post(path, json={"model": "words:1b", "stream": False, **body})


def _lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


# ── prompts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _chat(**body: Any) -> ChatRequest:
    return ChatRequest.model_validate_json(json.dumps(body))


def test_messages_become_template_messages() -> None:
    call = {"function": {"name": "look", "arguments": {"at": "it"}}}
    sent = _chat(
        messages=[
            {"role": "System", "content": "Be brief."},
            {"role": "user", "content": "What is it?"},
            {"role": "assistant", "thinking": "Hm.", "tool_calls": [call, {"id": "c", "function": {"name": "go"}}]},
            {"role": "tool", "tool_name": "go", "content": "gone"},
            {"role": "tool", "content": "seen"},
        ]
    ).prompt()
    first, second = sent.messages[2]["tool_calls"]
    assert first["function"] == {"name": "look", "arguments": {"at": "it"}} and second["id"] == "c"
    assert sent.messages[2]["reasoning_content"] == "Hm." and sent.messages[0]["role"] == "system"
    assert [(one["tool_call_id"], one["name"]) for one in sent.messages[3:]] == [("c", "go"), (first["id"], "look")]


@pytest.mark.parametrize(
    ("think", "expected"), [(True, (True, {})), (False, (False, {})), ("high", (True, {"reasoning_effort": "high"}))]
)
def test_think(think: Any, expected: Any) -> None:
    prompt = _chat(messages=[{"role": "user", "content": "x"}], think=think).prompt()
    assert (prompt.thinking, prompt.template_options) == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"format": "yaml"}, "format"),
        ({"keep_alive": "5 parsecs"}, "not a duration"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"seed": 1.5}}, "options.seed"),
        ({"think": "deeply"}, "think"),
        ({"top_logprobs": 2}, "logprobs"),
        ({"messages": [{"role": "oracle", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "images": ["%"]}]}, "base64"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images[0]"),
        ({"messages": [{"role": "system", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ({"receipt": True}, "receipt"),
        ({"template": "{{ .Prompt }}{{ if .System }}x{{ end }}"}, "Go templates"),
    ],
)
def test_what_is_wrong_is_named(server: Server, body: dict[str, Any], reason: str) -> None:
    response = _post(server, "/api/chat", **{**chat_body("x"), **body})
    assert response.status_code == 400
    assert response.json().keys() == {"error"} and reason in response.json()["error"]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chat(server: Server) -> None:
    answer = _post(server, "/api/chat", **chat_body("say: hello")).json()
    assert answer["message"] == {"role": "assistant", "content": "hello"}
    assert (answer["model"], answer["done"], answer["done_reason"]) == ("words:1b", True, "stop")
    assert answer["total_duration"] >= answer["eval_duration"] >= 0 and answer["eval_count"] >= 5
    assert answer["prompt_eval_count"] > 0 and answer["created_at"].endswith("Z")


def test_a_stream_is_lines_and_the_default(server: Server) -> None:
    *parts, last = _lines(server.client.post("/api/chat", json={"model": "words:1b", **chat_body("say: hello")}))
    assert "".join(part["message"]["content"] for part in parts) == "hello"
    assert not any(part["done"] for part in parts) and last["done"] and last["message"]["content"] == ""


def test_options_are_applied_and_those_without_effect_are_named(server: Server) -> None:
    options = {"num_predict": 3.0, "num_ctx": 512, "use_mmap": True, "stop": "zzz", "num_gpu": None, "new": 1}
    response = _post(server, "/api/chat", **chat_body("say: hello"), options=options)
    assert (response.json()["eval_count"], response.json()["done_reason"]) == (3, "length")
    named = set(response.headers["x-paddock-ignored-fields"].split(", "))
    assert named == {"options.new", "options.num_ctx", "options.use_mmap"}
    stopped = _post(server, "/api/chat", **chat_body("say: hello"), options={"stop": "ll", "num_predict": 0})
    assert stopped.json()["message"]["content"] == "he"


def test_a_format_is_enforced(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
    for form, expected in ((schema, {"a": 7}), ("json", dict)):
        options = {"num_predict": 200}
        answer = _post(server, "/api/chat", **chat_body("say: x"), format=form, options=options).json()
        content = json.loads(answer["message"]["content"])
        assert content == expected if isinstance(expected, dict) else isinstance(content, dict)


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_have_objects_as_arguments(server: Server, stream: bool) -> None:
    more = {"tools": [LOOK], "tool_choice": "required", "think": False, "stream": stream, "options": {"seed": 1}}
    response = _post(server, "/api/chat", model="caller", **chat_body("x"), **more)
    lines = _lines(response) if stream else [response.json()]
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert calls, lines
    for index, call in enumerate(calls):
        assert call["function"] == {"index": index, "name": "look", "arguments": {}} and call["id"]
    assert "".join(line["message"]["content"] for line in lines) == ""


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_field_of_its_own(server: Server, stream: bool) -> None:
    """With random weights the thinking ends by its budget only."""
    options = {"num_predict": 12, "seed": 1}
    body = {"think": True, "thinking_budget_tokens": 4, "stream": stream, "options": options}
    for path, prompt in (("/api/chat", chat_body("x")), ("/api/generate", {"prompt": "x"})):
        response = _post(server, path, model="caller", **prompt, **body)
        lines = _lines(response) if stream else [response.json()]
        parts = [line.get("message", line) for line in lines]
        assert "".join(part.get("thinking", "") for part in parts)
        assert "<think>" not in "".join(part.get("content", part.get("response")) for part in parts)


@pytest.mark.parametrize(("path", "prompt"), [("/api/chat", chat_body("x")), ("/api/generate", {"prompt": "x"})])
def test_think_is_refused_if_the_model_cannot(server: Server, path: str, prompt: dict[str, Any]) -> None:
    options = {"num_predict": 1}
    for think in (True, "high"):
        refused = _post(server, path, model="infill", **prompt, think=think)
        assert refused.status_code == 400
        assert refused.json()["error"] == '"infill" does not support thinking'
    assert _post(server, path, model="infill", **prompt, think=False, options=options).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags"])
def test_head(server: Server, path: str) -> None:
    answer = server.client.head(path, headers=BOSS)
    assert answer.status_code == 200 and not answer.content


def test_logprobs(server: Server) -> None:
    answer = _post(server, "/api/generate", prompt="say: hi", logprobs=True, top_logprobs=2).json()
    assert [item["token"] for item in answer["logprobs"]][:2] == ["h", "i"]
    assert all(len(item["top_logprobs"]) == 2 for item in answer["logprobs"])


def test_the_context_of_an_answer_continues_it(server: Server) -> None:
    first = _post(server, "/api/generate", prompt="say: one").json()
    assert first["response"] == "one" and len(first["context"]) >= first["prompt_eval_count"]
    second = _post(server, "/api/generate", prompt="say: two", context=first["context"]).json()
    assert second["response"] == "two"
    assert (
        second["prompt_eval_count"] > len(first["context"])
        and second["context"][: len(first["context"])] == first["context"]
    )


def test_raw_prompts_have_no_template_and_no_context(server: Server) -> None:
    raw = _post(server, "/api/generate", prompt="say: x", raw=True).json()
    plain = _post(server, "/api/generate", prompt="say: x", template="{{ .Prompt }}").json()
    assert raw["prompt_eval_count"] == plain["prompt_eval_count"] <= len("say: x") + 1
    assert "context" not in raw
    refused = _post(server, "/api/generate", prompt="x", raw=True, system="s")
    assert refused.status_code == 400 and "raw" in refused.json()["error"]


def test_a_suffix_needs_a_model_that_can_infill(server: Server) -> None:
    assert "suffix" in _post(server, "/api/generate", prompt="a", suffix="b").json()["error"]
    assert GenerateRequest.model_validate_json('{"prompt": "a", "suffix": "b"}').text_prompt().suffix == "b"  # type: ignore[union-attr]


def test_an_error_in_a_stream_is_a_line(server: Server) -> None:
    lines = _lines(_post(server, "/api/generate", prompt="raise: x", stream=True))
    assert lines[-1].keys() == {"error"}


def test_truncate_drops_the_oldest_messages(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "word " * 20}, {"role": "assistant", "content": "yes"}] * 8
    body = {"messages": [{"role": "system", "content": "s"}, *messages, {"role": "user", "content": "say: ok"}]}
    with Server("-m", "fake:n_ctx=512") as server:
        refused = server.client.post("/api/chat", json={**body, "stream": False})
        assert refused.status_code == 400 and "512" in refused.json()["error"]
        answer = server.client.post("/api/chat", json={**body, "stream": False, "truncate": True}).json()
        assert answer["message"]["content"] == "ok" and answer["prompt_eval_count"] > 256


def test_vectors(server: Server) -> None:
    answer = server.client.post("/api/embed", json={"model": "vectors", "input": ["ab", "b"]}).json()
    assert len(answer["embeddings"]) == 2 and answer["prompt_eval_count"] == 5
    assert sum(number**2 for number in answer["embeddings"][0]) == pytest.approx(1)
    short = server.client.post("/api/embed", json={"model": "vectors", "input": "ab", "dimensions": 4}).json()
    assert len(short["embeddings"][0]) == 4
    old = server.client.post("/api/embeddings", json={"model": "vectors", "prompt": "aa"}).json()
    assert max(old["embedding"]) == 2, "not normalized"
    assert server.client.post("/api/embed", json={"model": "vectors", "input": ""}).json()["embeddings"] == []


def test_long_inputs_are_cut_on_request_only(server: Server) -> None:
    body = {"model": "vectors", "input": "a" * 600}
    refused = server.client.post("/api/embed", json=body)
    assert refused.status_code == 400 and "512" in refused.json()["error"]
    assert server.client.post("/api/embed", json={**body, "truncate": True}).json()["prompt_eval_count"] == 512


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["words:1b", "Words-1B.Q4_0", "words-1b.q4_0:latest", "words-1b:q4_0", "words:1B"])
def test_names_with_tags_mean_our_models(server: Server, name: str) -> None:
    answer = _post(server, "/api/generate", model=name, prompt="say: x").json()
    assert (answer["model"], answer["response"]) == (name, "x")


def test_unknown_names(server: Server) -> None:
    for path, body in (("/api/chat", chat_body("x")), ("/api/show", {}), ("/api/embed", {"input": "x"})):
        response = _post(server, path, **{**body, "model": "nothing"})
        assert (response.status_code, response.json().keys()) == (404, {"error"})
        assert "'nothing'" in response.json()["error"]


def test_lists(server: Server) -> None:
    listed = {model["name"]: model for model in server.client.get("/api/tags").json()["models"]}
    assert listed.keys() >= {"Words-1B.Q4_0:latest", "vectors:latest", "other:latest"}
    assert listed["vectors:latest"]["capabilities"] == ["embedding"]
    mine = {model["name"] for model in server.client.get("/api/tags", headers=USER).json()["models"]}
    assert "other:latest" not in mine and "vectors:latest" in mine
    version = server.client.get("/api/version").json()["version"]
    assert len(version.split(".")) == 3


def test_keep_alive(server: Server) -> None:
    def loaded() -> dict[str, str]:
        found = server.client.get("/api/ps").json()["models"]
        return {model["name"]: model["expires_at"] for model in found}

    assert _post(server, "/api/generate", model="other", keep_alive=-1).json()["done_reason"] == "load"
    assert loaded()["other:latest"].startswith("2100")
    assert not _post(server, "/api/chat", model="other", keep_alive="2h", **chat_body("say: x")).is_error
    assert not loaded()["other:latest"].startswith("2100")
    assert _post(server, "/api/chat", model="other", messages=[], keep_alive=0).json()["done_reason"] == "unload"
    assert "other:latest" not in loaded()
    last = _lines(_post(server, "/api/chat", model="other", keep_alive=0, stream=True, **chat_body("say: x")))[-1]
    assert last["done"]
    wait_for(lambda: "other:latest" not in loaded(), 10, "the unload")


def test_keep_alive_of_other_keys_has_no_effect(server: Server) -> None:
    body = {"model": "words:1b", "stream": False, "keep_alive": 0, **chat_body("say: x")}
    answer = server.client.post("/api/chat", json=body, headers=USER)
    assert answer.status_code == 200 and answer.headers["x-paddock-ignored-fields"] == "keep_alive"
    refused = server.client.post("/api/generate", json={"model": "words:1b", "keep_alive": 0}, headers=USER)
    assert (refused.status_code, refused.json().keys()) == (403, {"error"})


def test_errors_of_every_layer_have_ollamas_shape(server: Server) -> None:
    short = {"model": "words:1b", "prompt": "x", "options": {"num_predict": 1}}
    with httpx.Client(base_url=server.url) as client:
        _check_errors(client, short)


def _check_errors(client: httpx.Client, short: dict[str, Any]) -> None:
    for status, response in (
        (401, client.post("/api/chat", json=chat_body("x"))),
        (401, client.get("/api/tags")),
        (403, client.post("/api/pull", json={"model": "x"}, headers=USER)),
        (403, client.post("/api/chat", json={"model": "other", **chat_body("x")}, headers=USER)),
        (404, client.get("/api/nothing", headers=USER)),
        (405, client.get("/api/chat", headers=USER)),
        (429, [client.post("/api/generate", json=short, headers=SLOW) for _ in range(2)][1]),
        (501, client.post("/api/blobs/sha256:00", headers=BOSS)),
    ):
        assert response.status_code == status
        assert response.json().keys() == {"error"} and isinstance(response.json()["error"], str)


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_created_name(server: Server) -> None:
    template = "{% for m in messages %}{{ m.role }}={{ m.content }}|{% endfor %}"
    steps = _lines(
        server.client.post(
            "/api/create",
            json={
                "model": "clerk",
                "from": "words:1b",
                "system": "s",
                "template": template,
                "parameters": {"num_predict": 2, "stop": ["!"]},
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "license": ["MIT"],
            },
        )
    )
    assert [step["status"] for step in steps][-1] == "success"
    shown = _post(server, "/api/show", model="clerk:latest").json()
    assert (shown["system"], shown["template"], shown["license"]) == ("s", template, "MIT")
    assert "num_predict" in shown["parameters"] and shown["details"]["parent_model"] == "Words-1B.Q4_0"
    answer = _post(server, "/api/chat", model="clerk", **chat_body("c")).json()
    assert answer["eval_count"] == 2
    assert answer["prompt_eval_count"] == len("system=s|user=a|assistant=b|user=c|") + 1
    assert (
        _post(server, "/api/chat", model="clerk", options={"num_predict": 1}, **chat_body("c")).json()["eval_count"]
        == 1
    )
    own = _post(
        server, "/api/chat", model="clerk", messages=[{"role": "system", "content": "t"}, *chat_body("c")["messages"]]
    )
    assert own.status_code == 200


def test_copies_and_deletions(server: Server) -> None:
    _post(server, "/api/create", model="first", **{"from": "words:1b"}, parameters={"num_predict": 1})
    assert server.client.post("/api/copy", json={"source": "first", "destination": "second:v1"}).status_code == 200
    assert _post(server, "/api/generate", model="second:v1", prompt="say: xyz").json()["eval_count"] == 1
    assert server.client.request("DELETE", "/api/delete", json={"model": "second:v1"}).status_code == 200
    gone = _post(server, "/api/generate", model="second:v1", prompt="x")
    assert gone.status_code == 404
    kept = server.client.request("DELETE", "/api/delete", json={"model": "words:1b"})
    assert kept.status_code in (403, 501) and "has not downloaded" in kept.json()["error"]


@pytest.mark.parametrize("name", ["../x", "a b", "", "a/b/c/d", "x" * 400, "a:b:c"])
def test_names_that_cannot_be_made(server: Server, name: str) -> None:
    refused = _post(server, "/api/create", model=name, **{"from": "words:1b"})
    assert refused.status_code == 400 and "model" in refused.json()["error"]


@pytest.mark.parametrize(
    "more", [{"files": {"a.gguf": "sha256:0"}}, {"quantize": "q4_0"}, {"adapters": {"a": "b"}}, {}]
)
def test_what_create_does_not_do(server: Server, more: dict[str, Any]) -> None:
    refused = _post(server, "/api/create", model="new", **more)
    assert refused.status_code == 400 and (min(more) if more else "from") in refused.json()["error"]


def test_created_names_are_there_after_a_restart(tmp_path: Path) -> None:
    for turn in range(2):
        with Server("-m", "fake:", "--data-dir", str(tmp_path / "data")) as server:
            if turn == 0:
                assert _post(server, "/api/create", model="kept", **{"from": "fake"}, system="s").status_code == 200
            assert _post(server, "/api/show", model="kept").json()["system"] == "s"


def test_a_pull_reports_its_progress_and_its_files_can_be_deleted(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "own.gguf").write_bytes(tiny_models["infill"].read_bytes())
    content = tiny_models["infill"].read_bytes()
    with Hub(owner__tiny=Repository({"tiny-Q4_0.gguf": content})) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
        with Server("--models-dir", str(models), "--data-dir", str(tmp_path / "data"), env=env) as server:
            lines = _lines(server.client.post("/api/pull", json={"model": "hf.co/owner/tiny:Q4_0"}))
            assert lines[0]["status"] == "pulling manifest" and lines[-1] == {"status": "success"}
            sizes = [(line.get("completed", 0), line["total"]) for line in lines if line.get("total")]
            assert sizes[-1] == (len(content), len(content))
            shown = _post(server, "/api/show", model="hf.co/owner/tiny:Q4_0")
            assert shown.status_code == 200 and shown.json()["details"]["family"] == "llama"
            missing = _post(server, "/api/pull", model="hf.co/owner/none")
            assert missing.status_code == 400 and "owner/none" in missing.json()["error"]
            unknown = _post(server, "/api/pull", model="llama3.2")
            assert unknown.status_code == 400 and "hf.co/OWNER/NAME" in unknown.json()["error"]
            done = server.client.request("DELETE", "/api/delete", json={"model": "hf.co/owner/tiny:Q4_0"})
            assert done.status_code == 200
            assert [path.name for path in models.rglob("*.gguf")] == ["own.gguf"]
            assert [model["name"] for model in server.client.get("/api/tags").json()["models"]] == ["own:latest"]


@full
@pytest.mark.parametrize("stream", [True, False])
def test_a_pull_ends_when_its_client_leaves(tmp_path: Path, tiny_models: dict[str, Path], stream: bool) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "own.gguf").write_bytes(tiny_models["infill"].read_bytes())
    big = Repository({"big-Q4_0.gguf": bytes(64 << 20)}, pause_after=1 << 20)  # more than sockets buffer
    with Hub(owner__big=big) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
        with Server("--models-dir", str(models), "--data-dir", str(tmp_path / "data"), env=env) as server:
            with closing(HTTPConnection(server.url.removeprefix("http://"))) as client:
                client.request("POST", "/api/pull", json.dumps({"model": "hf.co/owner/big:Q4_0", "stream": stream}))
                assert big.paused.wait(60)
            server.wait_for_line("path=/api/pull")  # the request has ended
            big.resume.set()
            wait_for(lambda: big.ended, 60, "the end of the download")
    assert big.ended == [False]
    assert [path.name for path in models.glob("*.gguf")] == ["own.gguf"]


# ── the second port ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_second_port_greets_and_has_all_routes(server: Server, port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=BOSS) as client:
        assert client.get("/").text == "Ollama is running"
        assert client.head("/").status_code == 200
        assert client.get("/api/tags").json()["models"]
        assert client.post("/v1/chat/completions", json=chat_body("say: x", model="words:1b")).status_code == 200
    assert "Ollama is running" not in server.client.get("/").text
