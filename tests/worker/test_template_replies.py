"""Constraints of replies: what a template writes is allowed, and reasoning comes before constrained content."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from paddock.engine.grammar import Grammar, GrammarSource
from paddock.errors import InvalidRequest
from paddock.text import Chat, ReplyParser
from paddock.text.reply.formats import detect_format
from paddock.types import ChatPrompt, Constraint, GenerateRequest
from paddock.worker.prompts import PromptReader
from tests.text.test_round_trip import ONLY_REASONING, USER, before_end, templates
from tests.tiers import full
from tests.worker.reply_grammars import (
    INFO,
    TOOLS,
    MarkerVocab,
    allows,
    read_prompt,
)


def _template_reply(name: str, message: dict[str, Any], **fields: Any) -> tuple[str, Grammar] | None:
    """The reply as the template writes it after the prompt, and the grammar of the reply. None if the template starts
    earlier replies in another way than the next one.
    """
    vocab = MarkerVocab("")
    vocab.chat_template = templates()[name]
    chat = Chat(vocab.chat_template, bos=vocab.bos, eos=vocab.eos)
    tools = fields.get("tools", ())
    for thinking in (None, True, False):
        prompt = ChatPrompt([USER], tools=tools, thinking=thinking)
        try:
            before = chat.render(prompt).text
        except InvalidRequest:
            continue  # reasoning cannot be turned off
        full = chat.render(ChatPrompt([USER, message], tools=tools, thinking=thinking, ending="none")).text
        if full.startswith(before):
            info = structs.replace(INFO, n_ctx=1 << 16)
            read = PromptReader(vocab, info).read(GenerateRequest(prompt, constraint=fields.get("body")))
            assert read.constraint is not None
            reply = before_end(full.removeprefix(before), chat.format).rstrip()
            reply = reply if chat.format.reply_prefix else reply.lstrip()
            return reply, GrammarSource(vocab, 260).compile(read.constraint)
    return None


def _accepted_prefix(grammar: Grammar, text: str) -> str:
    """The longest prefix that the grammar accepts."""
    data = text.encode()
    for at, letter in enumerate(data):
        if grammar.complete or grammar.forbidden()[letter] or not grammar.consume(letter):
            return data[:at].decode("utf-8", "ignore")
    return text


def _parse_rest(name: str, text: str) -> str:
    """The content in the rest of a reply."""
    parser = ReplyParser(detect_format(templates()[name]), TOOLS, call_id=str)
    return (parser.feed(text).content + parser.finish().content).strip()


@full
@pytest.mark.parametrize("name", templates())
def test_a_free_reply_may_be_written_as_the_template_does(name: str) -> None:
    arguments = {"title": "Aare", "kind": "trip", "days": 3}
    function = {"name": "plan", "arguments": arguments}
    calls = [{"id": "call00000", "type": "function", "function": function}]
    described = structs.replace(TOOLS[0], description="Plans.")
    properties = {key: {**schema, "description": "So."} for key, schema in TOOLS[0].parameters["properties"].items()}
    described = structs.replace(described, parameters={**described.parameters, "properties": properties})
    for content in ("", "Wait."):
        message = {"role": "assistant", "content": content, "reasoning_content": "Hm.", "tool_calls": calls}
        if found := _template_reply(name, message, tools=(described,)):
            text, grammar = found
            taken = _accepted_prefix(grammar, text)
            if taken != text:  # the rest are markers after the last call, or content that should come before it
                assert "trip" in taken and _parse_rest(name, text.removeprefix(taken)) in ("", content), text
            assert grammar.complete or not grammar.forbidden()[257] or ONLY_REASONING in name, text


@full
@pytest.mark.parametrize("name", templates())
def test_structured_content_may_be_written_as_the_template_does(name: str) -> None:
    body = Constraint("json_schema", '{"type": "object", "required": ["a"]}', "response_format")
    for reasoning in ({"reasoning_content": "Hm {."}, {}):
        message = {"role": "assistant", "content": '{"a": 12}', **reasoning}
        if found := _template_reply(name, message, body=body):
            text, grammar = found
            words = text.replace('{"a": 12}', "twelve")
            if ONLY_REASONING not in name and '{"a": 12}' in text:
                assert '{"a": 12}' not in _accepted_prefix(grammar.fork(), text).partition('{"a": 12}')[2]
                assert _accepted_prefix(grammar.fork(), text).endswith('{"a": 12}'), text
                assert "twelve" not in _accepted_prefix(grammar.fork(), words), text


def test_reasoning_comes_before_constrained_content() -> None:
    body = Constraint("json_schema", '{"type": "integer"}', "response_format")
    for template in ("<think> </think>", "<tool_call> <think> </think>", "[TOOL_CALLS] [THINK] [/THINK]"):
        think, end = ("[THINK]", "[/THINK]") if "[" in template else ("<think>", "</think>")
        _, grammar = read_prompt(template, tools=(), body=body)
        assert grammar is not None
        assert allows(grammar, f"{think}Hm, {{.{end}\n\n12") == "may end"
        assert allows(grammar, "12") == "may end"
        assert allows(grammar, "Hm.") == "no"
        _, grammar = read_prompt(template, body=body, tools=TOOLS)
        assert grammar is not None
        assert allows(grammar, f"{think}Hm.{end}\n\n12") == "may end"
        assert allows(grammar, "Hm.") == "no"


@pytest.mark.parametrize("kind", ["regex", "gbnf", "lark"])
def test_any_kind_of_constraint_can_follow_reasoning(kind: Any) -> None:
    source = {"regex": "[0-9]+", "gbnf": "root ::= [0-9]+", "lark": "start: /[0-9]+/"}[kind]
    _, grammar = read_prompt("<think> </think>", tools=(), body=Constraint(kind, source, kind))
    assert grammar is not None
    assert allows(grammar, "<think>Hm.</think>12") == "may end"
    assert allows(grammar, "twelve") == "no"
