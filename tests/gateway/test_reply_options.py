"""llama-server's options for reasoning, parsing and special tokens, as defaults and as request fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, chat_body

_FLAGS = ["--reasoning-budget", "7", "--reasoning-budget-message", " Enough.", "--no-prefill-assistant", "-n", "30"]
_THINK = {"enable_thinking": True, "seed": 1}
_TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def server(tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Models with a template that has reasoning. With random weights the reasoning hardly ever ends."""
    file = tmp_path_factory.mktemp("config") / "config.json"
    path = str(tiny_models["caller"])
    models = {
        "thinker": {"path": path},
        "inline": {"path": path, "defaults": {"reasoning_format": "none"}},
        "raw": {"path": path, "defaults": {"skip_chat_parsing": True}},
        "quiet": {"path": path, "defaults": {"chat_template_kwargs": {"enable_thinking": False}}},
        "replier": {"path": "fake:"},
        "continuer": {"path": "fake:", "defaults": {"prefill_assistant": True}},
        "infill": {"path": str(tiny_models["infill"])},
    }
    file.write_text(json.dumps({"model_manager": {"models": models}}), "utf-8")
    with Server("--config", str(file), "-c", "1024", *_FLAGS) as server:
        yield server


def _message(server: Server, **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = server.chat("Think.", **_THINK | fields)["choices"][0]["message"]
    return message


def _streamed(server: Server, **fields: Any) -> tuple[str, str]:
    """The content and the reasoning of a stream."""
    body = chat_body("Think.", **_THINK, **fields, stream=True)
    lines = server.client.post("/v1/chat/completions", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    content, reasoning = (
        "".join(delta.get(name) or "" for delta in deltas) for name in ("content", "reasoning_content")
    )
    return content, reasoning


def test_the_budget_ends_reasoning_with_the_message(server: Server) -> None:
    message = _message(server, model="thinker")
    assert message["reasoning_content"].endswith(" Enough.")
    assert message["content"] and "Enough" not in message["content"]
    other = _message(server, model="thinker", reasoning_budget_message=" Stop.", reasoning_budget=3)
    assert other["reasoning_content"].endswith(" Stop.")
    free = _message(server, model="thinker", thinking_budget_tokens=-1)
    assert "Enough." not in free["reasoning_content"]


def test_the_budget_is_for_every_dialect(server: Server) -> None:
    body = chat_body("Think.", model="thinker", max_tokens=30, thinking={"type": "enabled"}, seed=1)
    message = server.client.post("/v1/messages", json=body).json()
    assert message["content"][0]["thinking"].endswith(" Enough.")
    body = {"model": "thinker", "input": "Think.", "reasoning": {"effort": "low"}, "seed": 1}
    response = server.client.post("/v1/responses", json=body).json()
    assert response["output"][0]["content"][0]["text"].endswith(" Enough.")


def test_the_budget_holds_where_reasoning_is_content(server: Server) -> None:
    message = _message(server, model="inline")
    assert not message.get("reasoning_content")
    assert " Enough.[/THINK]" in message["content"]
    assert _message(server, model="inline", reasoning_format="auto")["reasoning_content"].endswith(" Enough.")


def test_the_legacy_format_separates_reasoning_in_whole_answers_only(server: Server) -> None:
    message = _message(server, model="thinker", reasoning_format="deepseek-legacy")
    assert message["reasoning_content"].endswith(" Enough.")
    content, reasoning = _streamed(server, model="thinker", reasoning_format="deepseek-legacy")
    assert " Enough.[/THINK]" in content and not reasoning
    content, reasoning = _streamed(server, model="thinker")
    assert "Enough" not in content and reasoning.endswith(" Enough.")


def test_reasoning_can_be_off_for_a_model(server: Server) -> None:
    """`--reasoning off` sets the same default."""
    assert not _message(server, model="quiet", enable_thinking=None).get("reasoning_content")
    for path, body in (("/v1/responses", {"input": "x"}), ("/v1/messages", chat_body("x", max_tokens=30))):
        answer = server.client.post(path, json={**body, "model": "quiet", "seed": 1}).json()
        parts = answer.get("output") or answer["content"]
        assert {part["type"] for part in parts} <= {"message", "text"}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_an_answer_that_is_not_parsed_is_content(server: Server, choice: str) -> None:
    fields = {"model": "raw", "tools": [_TOOL], "tool_choice": choice}
    message = _message(server, **fields)
    assert not message.get("reasoning_content") and not message.get("tool_calls")
    assert " Enough.[/THINK]" in message["content"]
    prompt = server.client.post("/apply-template", json=chat_body("x", **fields)).json()["prompt"]
    assert "clock" in prompt
    parsed = _message(server, **fields | {"tool_choice": "required", "skip_chat_parsing": False, "max_tokens": 200})
    assert parsed["tool_calls"] and parsed["reasoning_content"].endswith(" Enough.")


def test_a_last_message_of_the_assistant_is_continued_unless_the_default_says_otherwise(server: Server) -> None:
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Well"}]

    def ending(model: str, **fields: Any) -> bool:
        body = {"model": model, "messages": messages, **fields}
        return bool(server.client.post("/apply-template", json=body).json()["prompt"].endswith("Well"))

    assert not ending("replier")
    assert ending("continuer")
    assert ending("replier", prefill_assistant=True)
    assert ending("replier", continue_final_message=True)
    assert not ending("continuer", prefill_assistant=False)


def test_the_suffix_can_come_first(server: Server) -> None:
    body = {"model": "infill", "input_prefix": "the ", "input_suffix": " gate", "n_predict": 1}
    usual = server.client.post("/infill", json=body).json()["prompt"]
    swapped = server.client.post("/infill", json={**body, "spm_infill": True}).json()["prompt"]
    assert usual.index("the ") < usual.index(" gate")
    assert swapped.index(" gate") < swapped.index("the ")
    assert sorted(usual) == sorted(swapped)


def test_special_tokens_are_shown_on_request(demo_model: Path) -> None:
    with Server("-m", str(demo_model), "-c", "256", "--special", "--temp", "0") as server:
        tokens = server.client.post("/tokenize", json={"content": "<|im_end|>", "parse_special": True}).json()["tokens"]
        (end,) = tokens
        body = {"prompt": "Once", "n_predict": 5, "logit_bias": [[end, 1000]]}
        shown = server.client.post("/completion", json=body).json()
        hidden = server.client.post("/completion", json={**body, "skip_special_tokens": True}).json()
    assert shown["content"] == hidden["content"] + "<|im_end|>"
    assert (shown["stop_type"], hidden["stop_type"]) == ("eos", "eos")
    assert shown["tokens_predicted"] == hidden["tokens_predicted"]
