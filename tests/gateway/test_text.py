"""`/tokenize`, `/detokenize`, `/apply-template`, `/infill` and `/lora-adapters` over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server import Server, chat_body, events
from tests.tiers import examples, full


def _ask(server: Server, path: str, **body: Any) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def _refused(server: Server, path: str, **body: Any) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.fixture(scope="module")
def tiny_server(tiny_models: dict[str, Path]) -> Iterator[Server]:
    with Server("--models-dir", str(tiny_models["llama"].parent), "-c", "512") as server:
        yield server


# ── text and tokens ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_tokenize(fake_server: Server) -> None:
    assert _ask(fake_server, "/tokenize", content="ab") == {"tokens": [97, 98]}
    assert _ask(fake_server, "/tokenize", content="ab", add_special=True) == {"tokens": [256, 97, 98]}
    assert _ask(fake_server, "/tokenize", content="<s>") == {"tokens": [256]}
    assert _ask(fake_server, "/tokenize", content="<s>", parse_special=False) == {"tokens": [60, 115, 62]}
    assert _ask(fake_server, "/tokenize", content=["a", 257, "b"], add_special=True) == {"tokens": [256, 97, 257, 98]}
    assert _ask(fake_server, "/tokenize", content="") == {"tokens": []}


def test_pieces_are_texts_or_bytes(fake_server: Server, demo_server: Server) -> None:
    pieces = _ask(fake_server, "/tokenize", content="<s>é", with_pieces=True)["tokens"]
    assert pieces == [{"id": 256, "piece": "<s>"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    text = "Hello, Größe 🦙!"
    named = _ask(demo_server, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert [item["id"] for item in named] == _ask(demo_server, "/tokenize", content=text)["tokens"]
    written = [item["piece"] for item in named]
    assert b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in written).decode() == text
    assert "Hello" in written


@examples(100)
@given(st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=50))
def test_tokenize_and_detokenize_round_trip(tiny_server: Server, text: str) -> None:
    """With a vocabulary that has byte tokens and encodes a space as ▁."""
    tokens = _ask(tiny_server, "/tokenize", content=text, parse_special=False, model="llama")["tokens"]
    assert _ask(tiny_server, "/detokenize", tokens=tokens, model="llama") == {"content": text}


def test_special_tokens_are_named(fake_server: Server) -> None:
    assert _ask(fake_server, "/detokenize", tokens=[258, 97, 259]) == {"content": "<|im_start|>a<|im_end|>"}
    assert _ask(fake_server, "/detokenize", tokens=[195]) == {"content": "�"}


def test_apply_template_renders_the_chat_prompt(demo_server: Server) -> None:
    body = chat_body("Say hello.")
    prompt = _ask(demo_server, "/apply-template", **body)["prompt"]
    assert prompt.endswith("<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n")
    count = len(_ask(demo_server, "/tokenize", content=prompt)["tokens"])
    assert demo_server.chat("Say hello.", max_tokens=1)["usage"]["prompt_tokens"] == count


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 3}, "content"),
        ("/tokenize", {"content": [1.5]}, "content"),
        ("/tokenize", {"content": [[1]]}, "content"),
        ("/tokenize", {"content": [99999]}, "content"),
        ("/tokenize", {"content": [-1]}, "content"),
        ("/tokenize", {"content": "x" * ((1 << 20) + 1)}, "content"),
        ("/apply-template", chat_body("x" * ((1 << 20) + 1)), "messages"),
        ("/v1/messages/count_tokens", chat_body("x" * ((1 << 20) + 1), model="x"), "messages"),
        ("/v1/responses/input_tokens", {"input": "x" * ((1 << 20) + 1)}, "input"),
        ("/tokenize", {"content": "x", "add_special": 1}, "add_special"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [260]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/infill", {"input_prefix": "a"}, "input_suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": ["x"]}, "prompt"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]}, "input_extra[0].text"),
    ],
)
def test_errors_name_the_field(fake_server: Server, path: str, body: dict[str, Any], param: str) -> None:
    assert _refused(fake_server, path, **body)["param"] == param


def test_tokenize_loads_the_model(tiny_server: Server) -> None:
    assert _ask(tiny_server, "/tokenize", content="the", model="recurrent")["tokens"]
    response = tiny_server.client.post("/tokenize", json={"content": "the"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
    assert tiny_server.client.post("/tokenize", json={"content": "x", "model": "none"}).status_code == 404


@full
def test_tokenize_does_not_wait_for_a_generation() -> None:
    with Server("-m", "fake:delay=0.05", "-np", "1") as server:
        body = chat_body("say: " + "x" * 4000, stream=True)
        with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
            next(events(response))
            for _ in range(20):
                asked = httpx.post(f"{server.url}/tokenize", json={"content": "ab"}, timeout=200)
                assert asked.json() == {"tokens": [97, 98]}


# ── infill ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_infill_uses_prefix_and_suffix(tiny_server: Server) -> None:
    body = {"input_prefix": "the ", "input_suffix": " gate", "prompt": "horse", "n_predict": 4, "model": "infill"}
    answer = _ask(tiny_server, "/infill", temperature=0, **body)
    assert answer["prompt"] == "<s><fim_prefix>the horse<fim_suffix> gate<fim_middle>"
    assert answer["tokens_predicted"] == 4
    written = _ask(
        tiny_server, "/completion", prompt=answer["prompt"].removeprefix("<s>"), model="infill", n_predict=4,
        temperature=0,
    )  # fmt: skip
    assert written["content"] == answer["content"]
    assert tiny_server.client.post("/infill", json={**body, "stream": True}).text.count("data: ") == 5


def test_infill_puts_extra_files_first(tiny_server: Server) -> None:
    extra = [{"filename": "a.py", "text": "one"}, {"text": "two"}]
    body = {"input_prefix": "the", "input_suffix": "gate", "input_extra": extra, "n_predict": 1}
    plain = _ask(tiny_server, "/infill", model="infill", **body)["prompt"]
    snippet = "\n\n--- snippet ---\n\n"
    assert plain == f"<s>{snippet}one{snippet}two<fim_prefix>the<fim_suffix>gate<fim_middle>"
    repository = _ask(tiny_server, "/infill", model="repository", **body)["prompt"]
    assert repository == (
        "<s><|repo_name|>myproject\n<|file_sep|>a.py\none<|file_sep|>tmp\ntwo<|file_sep|>filename\n"
        "<fim_prefix>the<fim_suffix>gate<fim_middle>"
    )


def test_infill_without_support_is_refused(tiny_server: Server) -> None:
    body = {"input_prefix": "the", "input_suffix": "gate"}
    response = tiny_server.client.post("/infill", json={"model": "llama", **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (501, "input_suffix")
    assert "no infill tokens" in error["message"]
    error = _refused(tiny_server, "/infill", model="infill", **{**body, "input_prefix": "x" * 600})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input_prefix")


# ── adapters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_model_without_adapters(fake_server: Server) -> None:
    assert fake_server.client.get("/lora-adapters").json() == []
    assert fake_server.client.post("/lora-adapters", json=[]).json() == {"success": True}
    refused = fake_server.client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "[0].id"
    assert fake_server.client.post("/lora-adapters", json={"id": 0}).status_code == 400
    for path in ("/completion", "/v1/completions"):
        assert _refused(fake_server, path, prompt="x", lora=[{"id": 0, "scale": 1}])["param"] == "lora[0].id"
        assert _ask(fake_server, path, prompt="x", max_tokens=1, lora=[])
