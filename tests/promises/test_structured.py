"""Promise 4 for structured output: a complete answer is valid, and an unenforceable schema is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.schemas import HAND_WRITTEN, generated, official
from tests.server import Server, chat_body
from tests.tiers import full


def _ask(server: Server, **options: Any) -> dict[str, Any]:
    body = server.chat("Tell me something about a horse, as short JSON.", max_tokens=64, **options)
    choice: dict[str, Any] = body["choices"][0]
    return choice


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "asked", "strict": True, "schema": schema}}


def _exact(text: str) -> Any:
    """Parse numbers exactly: as a float, 0.2500000000000000001 equals 0.25."""
    return json.loads(text, parse_float=Decimal)


def _validate(content: str, schema: Any, draft: str = "draft2020-12") -> None:
    validator = {"draft2020-12": jsonschema.Draft202012Validator, "draft7": jsonschema.Draft7Validator}[draft]
    checked = validator(_exact(json.dumps(schema)), format_checker=validator.FORMAT_CHECKER)
    with localcontext(prec=200):
        checked.validate(_exact(content))


# ── at scale ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-c", "8192", "-np", "8") as server:
        yield server


@pytest.fixture(scope="module")
def thinking_server(demo_model: Path) -> Iterator[Server]:
    """The demo model, with a template that starts with reasoning."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n<think>\n{# </think> #}"
    )
    with Server("-m", str(demo_model), "-c", "8192", "-np", "8", "--chat-template", template) as server:
        yield server


def _bias_towards(server: Server, texts: dict[str, float]) -> dict[str, float]:
    """A bias towards these texts: only complete answers can be checked, and a small model writes long ones."""
    bias = {}
    for text, more in texts.items():
        for token in server.client.post("/tokenize", json={"content": text}).json()["tokens"]:
            bias[str(token)] = more
    return bias


_TOWARDS_THE_END = {'"': 4.0, "}": 4.0, "]": 4.0, "<|im_end|>": 4.0, "\n": -4.0}
_TOWARDS_THE_END_OF_REASONING = {"</": 5.0, "think": 5.0, ">": 9.0}


def _answers(server: Server, requests: list[dict[str, Any]], texts: dict[str, float]) -> list[dict[str, Any]]:
    """The answers to these requests, eight at a time, each sampled with its own seed."""
    common = {"temperature": 1.0, "logit_bias": _bias_towards(server, texts)}

    def ask(numbered: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        number, request = numbered
        body = chat_body("Tell me something about a horse, as short JSON.", seed=number, **common, **request)
        response = server.client.post("/v1/chat/completions", json=body, timeout=300)
        assert response.status_code in (200, 400), response.text
        answer: dict[str, Any] = response.json()
        return answer

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, enumerate(requests)))


def _is_refused(answer: dict[str, Any], param: str) -> bool:
    """Whether the schema is refused. The error names the parameter and the reason."""
    if "error" not in answer:
        return False
    assert answer["error"]["param"] == param
    assert answer["error"]["message"].removeprefix(f"{param} cannot be enforced: ") not in (
        "",
        answer["error"]["message"],
    )
    return True


def _finished(schemas: list[tuple[str, Any]], answers: list[dict[str, Any]]) -> Counter[str]:
    """The finish reasons of the answers to these schemas. Every complete answer is validated."""
    ends: Counter[str] = Counter()
    for (draft, schema), answer in zip(schemas, answers, strict=True):
        if _is_refused(answer, "json_schema" if isinstance(schema, bool) else "response_format"):
            ends["refused"] += 1
            continue
        choice = answer["choices"][0]
        ends[choice["finish_reason"]] += 1
        if choice["finish_reason"] == "stop":
            _validate(choice["message"]["content"], schema, draft)
    assert set(ends) <= {"stop", "length", "refused"}
    return ends


def _requests(schemas: list[tuple[str, Any]], max_tokens: int) -> list[dict[str, Any]]:
    return [
        {"max_tokens": max_tokens, **({"json_schema": s} if isinstance(s, bool) else {"response_format": _format(s)})}
        for _, s in schemas
    ]


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "own",
    [
        pytest.param(HAND_WRITTEN[::4], id="some written"),
        pytest.param(HAND_WRITTEN, id="written", marks=full),
        pytest.param(generated(60), id="generated", marks=full),
    ],
)
def test_complete_answers_validate(server: Server, own: list[Any]) -> None:
    """With a small model that hardly ever writes valid JSON by itself."""
    schemas = [("draft2020-12", schema) for schema in own]
    ends = _finished(schemas, _answers(server, _requests(schemas, 32), _TOWARDS_THE_END))
    assert ends["stop"] > len(schemas) / 3, ends
    assert ends["refused"] < len(schemas) / 5, ends


@full
@pytest.mark.timeout(500)
def test_complete_answers_to_the_official_suite_validate(server: Server) -> None:
    schemas = list(official())
    if not schemas:
        pytest.skip("no JSON-Schema test suite beside PADDOCK_TEST_MODELS")
    assert len(schemas) > 300
    ends = _finished(schemas, _answers(server, _requests(schemas, 16), _TOWARDS_THE_END))
    assert ends["stop"] > len(schemas) / 5, ends


# Short ones, because the schema is part of the prompt.
_RECORDS = [schema for schema in generated(120) if schema.get("type") == "object" and len(str(schema)) < 180]


@full
@pytest.mark.timeout(500)
def test_tool_calls_validate(server: Server) -> None:
    requests: list[dict[str, Any]] = [
        {
            "max_tokens": 48,
            "tools": [{"type": "function", "function": {"name": "tell", "parameters": schema}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
        for schema in _RECORDS[:10]
    ]
    called = 0
    for schema, answer in zip(_RECORDS, _answers(server, requests, _TOWARDS_THE_END), strict=False):
        if _is_refused(answer, "tools[0].function.parameters"):
            continue
        choice = answer["choices"][0]
        assert choice["finish_reason"] in ("tool_calls", "length")
        if choice["finish_reason"] == "tool_calls":
            called += 1
            _validate(choice["message"]["tool_calls"][0]["function"]["arguments"], schema)
    assert called > 2


@full
@pytest.mark.timeout(500)
def test_complete_answers_after_reasoning_validate(thinking_server: Server) -> None:
    schemas = [("draft2020-12", schema) for schema in HAND_WRITTEN if isinstance(schema, dict)][10:30]
    answers = _answers(thinking_server, _requests(schemas, 64), _TOWARDS_THE_END | _TOWARDS_THE_END_OF_REASONING)
    ends = _finished(schemas, answers)
    assert ends["stop"] > 2, ends
    assert any(answer["choices"][0]["message"].get("reasoning_content") for answer in answers if "error" not in answer)


# ── in detail ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_object(demo_server: Server) -> None:
    choice = _ask(demo_server, response_format={"type": "json_object"}, temperature=0)
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert choice["message"]["content"].startswith("{")


def test_several_completions_with_a_schema(demo_server: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        free = pool.submit(demo_server.chat, "Say hello.", max_tokens=24, temperature=0, deterministic=True)
        body = demo_server.chat("Pick.", n=4, temperature=2.0, response_format=_format({"enum": ["red", "green"]}))
        beside = free.result()["choices"][0]["message"]["content"]
    assert all(json.loads(choice["message"]["content"]) in ("red", "green") for choice in body["choices"])
    alone = demo_server.chat("Say hello.", max_tokens=24, temperature=0, deterministic=True)
    assert beside == alone["choices"][0]["message"]["content"]


def test_gbnf_grammar(demo_server: Server) -> None:
    grammar = r"""
        root  ::= item (", " item){1,2} "."
        item  ::= [A-Z] [a-z]{2,5} | number
        number ::= "-"? [1-9] [0-9]{0,2}
    """
    choice = _ask(demo_server, grammar=grammar, temperature=1.2)
    assert choice["finish_reason"] == "stop"
    item = r"(?:[A-Z][a-z]{2,5}|-?[1-9][0-9]{0,2})"
    assert re.fullmatch(rf"{item}(?:, {item}){{1,2}}\.", choice["message"]["content"])


def test_streamed_answers_validate(demo_server: Server) -> None:
    body = chat_body("A number?", stream=True, json_schema={"type": "integer", "minimum": 100, "maximum": 999})
    with demo_server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [
            json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: {")
        ]
    text = "".join(line["choices"][0]["delta"].get("content", "") for line in lines)
    assert 100 <= int(text) <= 999


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, "oneOf"),
        ({"type": "object", "if": {"minProperties": 1}, "then": {"required": ["a"]}}, "if"),
        ({"contains": {"type": "integer"}}, "contains"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "string", "format": "regex"}, "regex"),
        ({"type": "text"}, "text"),
    ],
)
def test_an_unenforceable_schema_is_refused(demo_server: Server, schema: Any, named: str) -> None:
    body = chat_body("hi", response_format=_format(schema))
    response = demo_server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "response_format"
    assert named in error["message"]
    assert "coerce" not in error["message"]
    assert "Enable" not in error["message"]


def test_unknown_formats_are_reported_and_ignored(demo_server: Server) -> None:
    schema = {"type": "string", "format": "sonnet", "enum": ["x"]}
    response = demo_server.client.post("/v1/chat/completions", json=chat_body("hi", response_format=_format(schema)))
    assert response.status_code == 200, response.text
    assert response.headers["x-paddock-ignored-fields"] == "format:sonnet"
    assert response.json()["choices"][0]["message"]["content"] == '"x"'


def test_conditions_and_dependencies(demo_server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
        "required": ["kind"],
        "additionalProperties": False,
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"required": ["a"]},
        "else": {"required": ["b"]},
        "dependentRequired": {"b": ["c"]},
    }
    for seed in range(4):
        choice = _ask(demo_server, response_format=_format(schema), temperature=2.0, seed=seed)
        assert choice["finish_reason"] == "stop"
        _validate(choice["message"]["content"], schema)
