"""Templates of every format, random replies that a grammar allows, and how they are parsed."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import jsonschema
import pytest
from msgspec import structs

from paddock.engine.fake_vocab import FakeVocab
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.text import ReplyParser
from paddock.text.reply.formats import detect_format
from paddock.text.reply.literal_formats import BraceFormat, PythonFormat
from paddock.text.reply.tag_formats import NestedTagFormat, TagFormat
from paddock.types import ChatPrompt, GenerateRequest, ModelInfo, Tool
from paddock.worker.prompts import PromptReader, Read

CHATML = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ reply_prefix }}{% endif %}"
)
TEMPLATES = {
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
    "gemma": '<|tool_call>call: <|"|>',
    "minimax m3": "]<]minimax[>[",
    "lfm2": "List of tools: [",
    "kimi k3": "<|open|> <|end_of_msg|>",
    "hy3": "<tool_sep{}> :opensource",
    "muse": "<atem:function_calls>",
    "minicpm": '<function name=" <param name="',
    "gigachat 3": "'role': 'function call'",
    "gigachat 3.1": "<|function_call|>",
    "apriel": "<tool_calls>[",
    "plain": "",
}
SINGLE = ("harmony", "gigachat 3", "gigachat 3.1")
BARE = ("llama 3", "plain")
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


_MARKS = re.compile(r"<[|｜][^<>|｜]+[|｜]?>|<\w+\|>|\[/?[A-Z_]+\]|\]<\]minimax\[>\[|</?tool_calls?>|</?think>")
# Control tokens that libllama prints as text.
_SHOWN = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"}


class MarkerVocab(FakeVocab):
    """Bytes and, on request, the markers of a format as control tokens, which no text can spell."""

    def __init__(self, template: str, *, controls: bool = False) -> None:
        format = detect_format(template)
        markers = "".join(format.markers + format.call_markers)
        self.marks = sorted(set(_MARKS.findall(markers)) - _SHOWN) if controls else []
        self.size = 260 + len(self.marks)
        self.chat_template = f"{{# {template} #}}" + CHATML.replace("reply_prefix", repr(format.reply_prefix))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if not self.marks or not parse_special:
            return super().tokenize(text, add_special=add_special, parse_special=parse_special)
        tokens: list[int] = super().tokenize("", add_special=add_special, parse_special=False)
        for part in re.split(f"({'|'.join(map(re.escape, self.marks))})", text):
            known = part in self.marks
            tokens += (
                [260 + self.marks.index(part)]
                if known
                else super().tokenize(part, add_special=False, parse_special=True)
            )
        return tokens

    def name(self, token: int) -> bytes:
        return self.marks[token - 260].encode() if token >= 260 else super().name(token)

    def tokens(self, text: str) -> list[int]:
        return self.tokenize(text, add_special=False, parse_special=True)


def read_prompt(template: str, *, controls: bool = False, **fields: Any) -> tuple[Read, Grammar | None]:
    vocab = MarkerVocab(template, controls=controls)
    body = fields.pop("body", None)
    prompt = ChatPrompt([{"role": "user", "content": "hi"}], tools=fields.pop("tools", TOOLS), **fields)
    info = structs.replace(INFO, n_vocab=vocab.size)
    read = PromptReader(vocab, info).read(GenerateRequest(prompt, constraint=body))
    return read, GrammarSource(vocab, vocab.size).compile(read.constraint) if read.constraint is not None else None


def _text_endings(template: str) -> list[str]:
    """Markers that end a text in this format."""
    format = detect_format(template)
    endings = [format.reasoning.closing] if format.reasoning is not None else []
    if isinstance(format, TagFormat):
        endings += [format.argument.partition("{value}")[2]]
    if isinstance(format, NestedTagFormat):
        endings += [format.closing_tag(name) for name in ("title", "name", "item")]
    if isinstance(format, PythonFormat):
        endings += ["'"]
    return [*endings, *([format.quote] if isinstance(format, BraceFormat) else [])] or ["x"]


def random_reply(grammar: Grammar, seed: int, template: str, *, controls: bool = False) -> str:
    """A random reply that the grammar allows. It leaves free text by one of the markers that end it."""
    vocab, choices, endings = MarkerVocab(template, controls=controls), Random(seed), _text_endings(template)
    written: list[int] = []
    pending: list[int] = []
    for _ in range(10000):
        if grammar.complete:
            break
        allowed = [token for token, no in enumerate(grammar.forbidden()) if not no]
        is_free = len([token for token in allowed if token < 256]) > 90
        if is_free and not pending and ord("\n") in allowed:
            pending = vocab.tokens(choices.choice(["x", "é\n", ""]) + choices.choice(endings))
        elif is_free and not pending:
            pending = vocab.tokens(choices.choice(["x", "é", ""]) + '"')
        if pending:
            token, *pending = pending
            if token not in allowed:
                pending = []
                continue
        elif 257 in allowed and choices.random() < 0.5:
            break
        else:
            likely = [token for token in allowed if token not in (256, 257, 258, 259, *b" \t\n\\")]
            spaces = [token for token in allowed if token in (*b" \n",)]
            token = choices.choice(likely if likely and choices.random() < 0.7 else spaces or likely)
        assert grammar.consume(token)
        written.append(token)
    else:
        pytest.fail(f"no end of {written}")
    return b"".join(map(vocab.name, written)).decode("utf-8")


def parse_reply(read: Read, text: str) -> tuple[list[tuple[str, Any]], str, ReplyParser]:
    assert read.reply is not None
    parser = ReplyParser(read.reply.format, read.reply.tools, call_id=str, reply_prefix=read.reply.reply_prefix)
    parsed, rest = parser.feed(text), parser.finish()
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for part in parsed.calls + rest.calls:
        assert not part.withdrawn
        names.setdefault(part.index, part.name)
        arguments[part.index] = arguments.get(part.index, "") + part.arguments
    calls = [(names[index], json.loads(arguments[index])) for index in names]
    return calls, parsed.content + rest.content, parser


def check_calls(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])


def allows(grammar: Grammar, text: str, vocab: MarkerVocab | None = None) -> str:
    grammar = grammar.fork()
    for token in (vocab or MarkerVocab("")).tokens(text):
        if grammar.complete or grammar.forbidden()[token] or not grammar.consume(token):
            return "no"
    return "complete" if grammar.complete else "more" if grammar.forbidden()[257] else "may end"
