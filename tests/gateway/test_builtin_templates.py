"""`--chat-template NAME` and `--no-jinja`: templates that llama.cpp renders by its own code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, chat_body
from tests.tiers import full

_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
]


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("config") / "config.json"
    path, like_llama3 = str(demo_model), "{# <|start_header_id|><|end_header_id|> #}{{ messages }}"
    models = {
        "named": {"path": path, "chat_template": "gemma"},
        "plain": {"path": path},
        "recognised": {"path": path, "jinja": False, "chat_template": like_llama3},
        "unknown": {"path": path, "jinja": False, "chat_template": "{{ messages }}"},
        "chatml": {"path": path, "chat_template": "chatml"},
    }
    file.write_text(json.dumps({"model_manager": {"n_ctx": 512, "models": models}}), "utf-8")
    with Server("--config", str(file), "--chat-template", "llama3", "-n", "4") as server:
        yield server


def _rendered(server: Server, model: str, **fields: Any) -> Any:
    body = {"model": model, "messages": _MESSAGES, **fields}
    response = server.client.post("/apply-template", json=body)
    return response.json().get("prompt") or response.json()["error"]


@full
def test_a_name_is_the_template_of_all_models_or_of_one(server: Server) -> None:
    assert _rendered(server, "plain") == (
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nhello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    named = "<start_of_turn>user\nBe brief.\n\nhello<end_of_turn>\n<start_of_turn>model\n"
    assert _rendered(server, "named") == named
    assert server.client.get("/props?model=named").json()["chat_template"] == "gemma"


def test_a_model_with_a_built_in_template_answers(server: Server) -> None:
    body = server.chat("hello", model="named", ignore_eos=True, temperature=0)
    assert body["choices"][0]["message"]["content"]
    assert body["usage"]["completion_tokens"] == 4


def test_a_last_message_of_the_assistant_is_continued(server: Server) -> None:
    start = {"role": "assistant", "content": "Once"}
    assert str(_rendered(server, "named", messages=[*_MESSAGES, start])).endswith("<start_of_turn>model\nOnce")


@pytest.mark.parametrize("model", ["named", "recognised"])
def test_tools_are_refused(server: Server, model: str) -> None:
    response = server.client.post("/v1/chat/completions", json=chat_body("hi", model=model, tools=_TOOLS))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert "--jinja" in response.json()["error"]["message"]


def test_earlier_calls_become_text(server: Server) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"word": "horse"}'}}
    calls = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "neigh"},
    ]
    rendered = str(_rendered(server, "named", messages=[*_MESSAGES, *calls]))
    assert "horse" in rendered and "neigh" in rendered


def test_without_jinja_the_text_of_a_template_is_recognised(server: Server) -> None:
    assert str(_rendered(server, "recognised")).startswith("<|start_header_id|>system<|end_header_id|>\n\nBe brief.")
    refused = _rendered(server, "unknown")
    assert refused["param"] == "messages" and "set jinja to true" in refused["message"]


def test_chatml_is_rendered_by_jinja_and_takes_tools(server: Server) -> None:
    assert str(_rendered(server, "chatml")).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    assert "f" in str(_rendered(server, "chatml", tools=_TOOLS))


def test_a_name_can_be_set_while_the_server_runs(demo_model: Path) -> None:
    with Server("-m", str(demo_model), "-c", "256", "--props") as server:
        assert server.client.post("/props", json={"chat_template": "vicuna"}).json() == {"success": True}
        assert _rendered(server, "any") == "Be brief.\n\nUSER: hello\nASSISTANT:"
