"""A tool-call format is one declaration: a toy format with a new shape needs no change anywhere else."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any

import jsonschema
import pytest

from paddock.engine.fake_vocab import EOS, N_VOCAB, FakeVocab
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.text import Chat, ReplyParser, reply_constraint
from paddock.text.reply.call_grammar import FunctionGrammar
from paddock.text.reply.format import Format
from paddock.text.reply.formats import FORMATS
from paddock.text.reply.reader import CallReader, Reading
from paddock.types import ChatPrompt, Tool

# ── the declaration: this is all that a new format adds to formats.py ────────────────────────────────────────────────


@dataclass(frozen=True)
class PipeFormat(Format):
    """`<<f|{…}>>`"""

    def read(self, reader: CallReader) -> Reading[None]:
        reader.begin_call((yield from reader.header("|")))
        yield from reader.json(reader.add_arguments)
        yield from reader.close(self.closing)
        reader.end_call()

    def grammar(self, function: FunctionGrammar, written: str = "") -> str:
        lark = function.lark
        return f"{lark.literal(function.name + '|')} {function.json_arguments()} {lark.literal(self.closing)}"


TOY = PipeFormat(("<<name|",), call="<<{call}>>", separator="\n")

# ── the tests ────────────────────────────────────────────────────────────────────────────────────────────────────────

TEMPLATE = (
    "{% if tools %}Write calls as <<name|json>>. {{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<<{{ c.function.name }}|{{ c.function.arguments | tojson }}>>\n{% endfor %}"
    "{% endfor %}"
)
ADD = Tool(
    "add",
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "unit": {"enum": ["m", "km"]}},
        "required": ["a"],
        "additionalProperties": False,
    },
)
CLOCK = Tool("clock", {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = (ADD, CLOCK)
CALLS = [("add", {"a": 1, "unit": "km"}), ("clock", {})]
REPLY = '<<add|{"a": 1, "unit": "km"}>>\n<<clock|{}>>'


class Spelling:
    """A vocabulary without control tokens."""

    def literal(self, marker: str) -> str:
        return json.dumps(marker, ensure_ascii=False)

    def controls_except(self, marker: str) -> str:
        return ""


@pytest.fixture
def chat() -> Chat:
    return Chat(TEMPLATE, formats=[TOY, *FORMATS])


def parse(format: Format, pieces: list[str]) -> tuple[str, list[tuple[str, Any]], bool]:
    """Content, calls, and whether the reply is malformed."""
    parser = ReplyParser(format, TOOLS, call_id=str)
    parts = [*map(parser.feed, pieces), parser.finish()]
    deltas = [delta for part in parts for delta in part.calls]
    withdrawn = {delta.index for delta in deltas if delta.withdrawn}
    calls = [
        (delta.name, json.loads("".join(one.arguments for one in deltas if one.index == delta.index)))
        for delta in deltas
        if delta.name and delta.index not in withdrawn
    ]
    return "".join(part.content for part in parts), calls, parser.malformed


def compile_grammar(format: Format, **choice: Any) -> Grammar:
    constraint = reply_constraint(format, ChatPrompt([], tools=TOOLS, **choice), Spelling())
    assert constraint is not None
    return GrammarSource(FakeVocab(), N_VOCAB).compile(constraint)


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the grammar allows this text as a whole reply."""
    grammar = grammar.fork()
    for byte in text.encode():
        if grammar.complete or grammar.forbidden()[byte] or not grammar.consume(byte):
            return False
    return grammar.complete or not grammar.forbidden()[EOS]


def test_the_template_selects_it(chat: Chat) -> None:
    assert chat.format == TOY
    assert Chat(TEMPLATE).format != TOY, "it is not in FORMATS"


def test_it_is_parsed_whole_and_one_character_at_a_time(chat: Chat) -> None:
    for pieces in ([REPLY], list(REPLY)):
        assert parse(chat.format, pieces) == ("", CALLS, False)
        assert parse(chat.format, ["Wait. ", *pieces]) == ("Wait.", CALLS, False)


@pytest.mark.parametrize("reply", ["<<subtract|{}>>", '<<add|{"a": 1]>>', "<<clock|{}>", "1 << 2"])
def test_malformed_calls_are_content(chat: Chat, reply: str) -> None:
    assert parse(chat.format, list(reply)) == (reply, [], True)


def test_the_template_writes_what_the_parser_reads(chat: Chat) -> None:
    made = [{"id": name, "type": "function", "function": {"name": name, "arguments": given}} for name, given in CALLS]
    message = {"role": "assistant", "content": "Wait.", "tool_calls": made}
    text = chat.render(ChatPrompt([message], tools=TOOLS, ending="none")).text
    assert parse(chat.format, [text[text.index("Wait.") :]])[:2] == ("Wait.", CALLS)


def test_a_required_call_is_constrained_to_it(chat: Chat) -> None:
    grammar = compile_grammar(chat.format, must_call=True)
    assert accepts(grammar, REPLY)
    for other in ("Hello.", "<<clock|{}", "<<subtract|{}>>", '<<add|{"a": "x"}>>', '<<add|{"b": 1}>>'):
        assert not accepts(grammar, other)
    only_clock = compile_grammar(chat.format, must_call=True, function="clock", parallel_calls=False)
    assert accepts(only_clock, "<<clock|{}>>") and not accepts(only_clock, '<<add|{"a": 1}>>')


def test_a_free_reply_is_constrained_once_it_starts_a_call(chat: Chat) -> None:
    grammar = compile_grammar(chat.format)
    for reply in ("Hello.", "1 < 2", f"Wait. {REPLY}"):
        assert accepts(grammar, reply)
    assert not accepts(grammar, "Wait. <<subtract|{}>>")


def test_replies_that_the_grammar_allows_are_valid_calls(chat: Chat) -> None:
    grammar = compile_grammar(chat.format, must_call=True)
    for seed in range(10):
        content, calls, malformed = parse(chat.format, list(_random_reply(grammar.fork(), seed)))
        assert calls and not content and not malformed
        for name, arguments in calls:
            jsonschema.validate(arguments, ADD.parameters if name == "add" else CLOCK.parameters)


def _random_reply(grammar: Grammar, seed: int) -> str:
    choices, written = Random(seed), bytearray()
    while not grammar.complete:
        forbidden = grammar.forbidden()
        if not forbidden[EOS] and choices.random() < 0.5:
            break
        allowed = [byte for byte in range(256) if not forbidden[byte]]
        byte = choices.choice([byte for byte in allowed if byte not in b" \t\r\n"] or allowed)
        assert grammar.consume(byte)
        written.append(byte)
    assert re.fullmatch(rb"(<<.*>>\n?)+", written)
    return written.decode()
