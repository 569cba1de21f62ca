"""What a reply is held to: whatever a grammar lets through, the parser reads as calls that keep to their schemas."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from paddock.engine.fake import FakeVocab
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.errors import InvalidRequest
from paddock.text import ReplyParser
from paddock.types import ChatPrompt, Constraint, GenerateRequest, ModelInfo, Tool
from paddock.worker.prompts import PromptReader, Read

CHATML = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ lead }}{% endif %}"
)
SIGNS = {
    "hermes": "<tool_call>",
    "qwen3-coder": "<tool_call> <function= <parameter=",
    "seed": "<seed:tool_call>",
    "llama 3": '{"name": function name, "parameters"',
    "mistral, old": "[TOOL_CALLS]",
    "mistral, new": "[TOOL_CALLS] [ARGS]",
    "harmony": "<|channel|>analysis",
    "deepseek r1": "<｜tool▁sep｜> ```json",
    "deepseek v3.1": "<｜tool▁sep｜>",
    "deepseek v3.2": "DSML function_calls>",
    "glm": "<arg_key>",
    "granite": "<|tool_call|>",
    "command-r7b": "<|START_ACTION|>",
    "command-r plus": "Action: tool_name",
    "kimi": "<|tool_call_argument_begin|>",
    "minimax m1": "<tool_calls>",
    "minimax m2": "<minimax:tool_call>",
    "functionary 3.1": "<function=",
    "functionary 3.2": ">>>all",
    "solar": "<|tool_call:begin|>",
    "nemotron": "<TOOLCALL>",
    "apertus": "<|tools_prefix|>",
    "firefunction": "functools[",
    "plain": "",
}
TOOLS = (
    Tool(
        "plan",
        {
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "Any text."},
                "kind": {"type": "string", "enum": ["trip", "party"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "maxItems": 1},
            },
            "required": ["title", "kind"],
            "additionalProperties": False,
            "$defs": {"stop": {"enum": ["a", "b"]}},
        },
    ),
    Tool("clock", {"type": "object", "properties": {}, "additionalProperties": False}),
)
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
INFO = ModelInfo("fake", 8192, 8192, 260, 0, 0)
# Ways out of any text, whatever the format.
WAYS_OUT = ("\n</parameter>\n", "</parameter>\n", "</｜DSML｜parameter>\n", "</arg_value>\n", "<|end|>", '<|"|>')


class _Vocab(FakeVocab):
    def __init__(self, sign: str) -> None:
        lead = "<|start|>assistant" if "channel" in sign else ">>>" if ">>>" in sign else ""
        self.chat_template = f"{{# {sign} #}}" + CHATML.replace("lead", repr(lead))


def _read(sign: str, **fields: Any) -> tuple[Read, Grammar | None]:
    vocab = _Vocab(sign)
    body = fields.pop("body", None)
    prompt = ChatPrompt([{"role": "user", "content": "hi"}], tools=fields.pop("tools", TOOLS), **fields)
    read = PromptReader(vocab, INFO).read(GenerateRequest(1, prompt, constraint=body))
    return read, GrammarSource(vocab, 260).compile(read.constraint) if read.constraint is not None else None


def _walk(grammar: Grammar, seed: int) -> str:
    """A reply that the grammar allows: drawn at random, and where any text is allowed, out of there sooner or later."""
    choices, said, coming, ways = Random(seed), bytearray(), b"", 0
    for _ in range(3000):
        if grammar.complete:
            break
        allowed = [token for token, no in enumerate(grammar.forbidden()) if not no]
        anything = len(allowed) > 90
        if anything and not coming and ord("\n") in allowed:
            coming = choices.choice(["x", "é\n", ""]).encode() + WAYS_OUT[ways % len(WAYS_OUT)].encode()
            ways += 1
        elif anything and not coming:
            coming = choices.choice(["x", "é", ""]).encode() + b'"'
        if coming:
            token, coming = coming[0], coming[1:]
            if token not in allowed:
                coming = b""
                continue
        elif 257 in allowed and choices.random() < 0.5:
            break
        else:
            token = choices.choice([token for token in allowed if token < 256 and token != ord("\\")])
        assert grammar.consume(token)
        said.append(token)
    else:
        pytest.fail(f"no end of {bytes(said)!r}")
    return said.decode("utf-8")


def _parse(read: Read, text: str) -> tuple[list[tuple[str, Any]], str, ReplyParser]:
    assert read.reply is not None
    parser = ReplyParser(read.reply.format, read.reply.tools, call_id=str, lead=read.reply.lead)
    parsed, rest = parser.feed(text), parser.finish()
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for part in parsed.calls + rest.calls:
        assert not part.withdrawn
        names.setdefault(part.index, part.name)
        arguments[part.index] = arguments.get(part.index, "") + part.arguments
    calls = [(names[index], json.loads(arguments[index])) for index in names]
    return calls, parsed.content + rest.content, parser


def _check(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize("name", SIGNS)
def test_what_must_be_a_call_is_one_that_keeps_to_its_schema(name: str) -> None:
    read, grammar = _read(SIGNS[name], must_call=True)
    assert grammar is not None
    several = 0
    for seed in range(12):
        text = _walk(grammar.fork(), seed)
        calls, content, parser = _parse(read, text)
        assert calls, text
        assert not content.strip() and not parser.malformed, text
        _check(calls)
        several += len(calls) > 1
    assert several or name == "harmony", "there may be several"


@pytest.mark.parametrize("name", SIGNS)
def test_one_call_of_the_one_function_that_was_named(name: str) -> None:
    read, grammar = _read(SIGNS[name], must_call=True, function="clock", parallel_calls=False)
    assert grammar is not None
    for seed in range(3):
        calls, _, _ = _parse(read, _walk(grammar.fork(), seed))
        assert calls == [("clock", {})]


@pytest.mark.parametrize("name", SIGNS)
def test_a_free_reply_is_free_until_it_begins_a_call(name: str) -> None:
    read, grammar = _read(SIGNS[name])
    assert read.is_optional
    if grammar is None:
        free = ("llama 3", "plain", "harmony", "solar", "command-r7b", "functionary 3.2")
        assert name in free, "nothing tells where a call begins"
        return
    assert _allows(grammar, "Any text at all: { < [ é") == "may end"
    _, must = _read(SIGNS[name], must_call=True)
    assert must is not None
    text = _walk(must, 1)
    assert _allows(grammar, f"Well.\n{text}") in ("complete", "may end")
    assert _allows(grammar, "Well.\n" + text.replace("plan", "plot").replace("clock", "cluck")) == "no"


def test_thoughts_come_before_what_is_constrained() -> None:
    body = Constraint("json_schema", '{"type": "integer"}', "response_format")
    for sign in ("<think> </think>", "<tool_call> <think> </think>", "[TOOL_CALLS] [THINK] [/THINK]"):
        think, end = ("[THINK]", "[/THINK]") if "[" in sign else ("<think>", "</think>")
        _, grammar = _read(sign, tools=(), body=body)
        assert grammar is not None
        assert _allows(grammar, f"{think}Hm, {{.{end}\n\n12") == "may end"
        assert _allows(grammar, "12") == "may end"
        assert _allows(grammar, "Hm.") == "no"
        _, grammar = _read(sign, body=body, tools=TOOLS)
        assert grammar is not None
        assert _allows(grammar, f"{think}Hm.{end}\n\n12") == "may end"
        assert _allows(grammar, "Hm.") == "no"


@pytest.mark.parametrize("kind", ["regex", "gbnf", "lark"])
def test_any_kind_of_constraint_can_follow_thoughts(kind: Any) -> None:
    source = {"regex": "[0-9]+", "gbnf": "root ::= [0-9]+", "lark": "start: /[0-9]+/"}[kind]
    _, grammar = _read("<think> </think>", tools=(), body=Constraint(kind, source, kind))
    assert grammar is not None
    assert _allows(grammar, "<think>Hm.</think>12") == "may end"
    assert _allows(grammar, "twelve") == "no"


def test_the_format_that_is_almost_json() -> None:
    flat = Tool(
        "plan",
        {
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "kind": {"type": "string", "enum": ["trip", "party"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
        },
    )
    sign = '<|tool_call>call: <|"|>'
    for required in ([], ["kind"]):
        tool = Tool(flat.name, {**flat.parameters, "required": required})
        read, grammar = _read(sign, tools=(tool, TOOLS[1]), must_call=True)
        assert grammar is not None
        for seed in range(12):
            calls, content, parser = _parse(read, _walk(grammar.fork(), seed))
            assert calls and not content and not parser.malformed
            for name, arguments in calls:
                jsonschema.validate(arguments, {"plan": tool, "clock": TOOLS[1]}[name].parameters)
    with pytest.raises(InvalidRequest, match="only texts, numbers and booleans"):
        _read(sign, must_call=True)
    assert _read(sign)[1] is None, "a model that need not call is free to"


def test_a_schema_that_cannot_be_enforced_is_named() -> None:
    odd = Tool("odd", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})
    for sign in ("<tool_call>", "", "<arg_key>"):
        with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
            _read(sign, tools=(TOOLS[0], odd), must_call=True)
        assert (caught.value.param or "").startswith("tools[1].function.parameters")


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x$"}}},
        {"anyOf": [{"type": "object"}]},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"a>b": {}}},
    ],
)
def test_what_cannot_be_enforced_between_tags_is_named(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _read("<arg_key>", tools=(Tool("odd", parameters),), must_call=True)
    assert (caught.value.param or "").startswith("tools[0].function.parameters")


def _allows(grammar: Grammar, text: str) -> str:
    grammar = grammar.fork()
    for letter in text.encode():
        if grammar.complete or grammar.forbidden()[letter] or not grammar.consume(letter):
            return "no"
    return "complete" if grammar.complete else "more" if grammar.forbidden()[257] else "may end"
