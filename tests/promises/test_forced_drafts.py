"""What a schema forces is drafted, on a real server: fewer steps, and the same answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server import Server, chat_body, events
from tests.tiers import full

KEYS = ["customer_full_legal_name", "customer_shipping_address", "customer_loyalty_program_status"]
SCHEMA = {
    "type": "object",
    "properties": {
        KEYS[0]: {"type": "string", "maxLength": 20},
        KEYS[1]: {"type": "string", "maxLength": 20},
        KEYS[2]: {"enum": ["platinum_member", "gold_member", "not_a_member"]},
    },
    "required": KEYS,
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "customer", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "add_customer", "parameters": SCHEMA}}]
PLAIN = {"speculative.n_max": 0}
ALWAYS = {"speculative.type": "ngram"}
"""Also if it does not pay. `auto` depends on measured times."""


def _ask(server: Server, body: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"], answer["timings"]


@pytest.mark.parametrize(
    "options",
    [
        {"response_format": FORMAT},
        {"response_format": FORMAT, "logprobs": True, "top_logprobs": 2},
        {"response_format": FORMAT, "n": 2},
        {"response_format": FORMAT, "max_tokens": 30},
        {"response_format": FORMAT, "stop": ["loyalty"]},
        {"tools": TOOLS, "tool_choice": "required"},
        {"regex": "(one horse and ){2,4}[a-z]+"},
    ],
    ids=lambda options: ",".join(options),
)
def test_forced_text_takes_fewer_steps_and_changes_nothing(fake_server: Server, options: dict[str, Any]) -> None:
    body = chat_body("Who is the customer?", seed=5, **options, **ALWAYS)
    expected, plain = _ask(fake_server, body | PLAIN)
    answer, timings = _ask(fake_server, body)
    assert answer == expected
    assert "draft_n" not in plain
    assert timings["draft_n_accepted"] > 10


def test_a_stream_has_the_same_events(fake_server: Server) -> None:
    body = {"prompt": "Once", "json_schema": SCHEMA, "stream": True, "n_probs": 2, **ALWAYS}
    streamed = []
    for more in (PLAIN, {}):
        with fake_server.client.stream("POST", "/completion", json=body | more) as response:
            parts = [json.loads(data) for _, data in events(response)]
        streamed.append([(part["content"], part["tokens"], part.get("completion_probabilities")) for part in parts])
        assert ("draft_n" in parts[-1]["timings"]) == (more is not PLAIN)
    assert streamed[0] == streamed[1]


@full
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, pytest.param({"temperature": 0.8, "seed": 3}, marks=full)], ids=str
)
def test_the_demo_model_accepts_what_a_schema_forces(demo_server: Server, sampling: dict[str, Any]) -> None:
    """The bytes are compared with models that compute without rounding (tests/engine/test_forced_tokens.py).

    How many guesses are wrong depends on what this server has answered before: repeated text is guessed as well.
    """
    tools = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    for format in ({"response_format": FORMAT}, tools):
        body = chat_body("Invent a customer.", max_tokens=200, **sampling, **format, **ALWAYS)
        (choice,), timings = _ask(demo_server, body)
        message = choice["message"]
        calls = message.get("tool_calls")
        text = calls[0]["function"]["arguments"] if calls else message["content"]
        assert list(json.loads(text)) == KEYS
        assert timings["draft_n_accepted"] > 10
