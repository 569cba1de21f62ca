"""Constraints of replies: the parser reads every reply that a grammar allows as calls that match their schemas."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from paddock.engine.fake_vocab import FakeVocab
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.errors import InvalidRequest
from paddock.text import Chat, ReplyParser
from paddock.text.reply.formats import detect_format
from paddock.text.reply.literal_formats import BraceFormat, PythonFormat
from paddock.text.reply.tag_formats import NestedTagFormat, TagFormat
from paddock.types import ChatPrompt, Constraint, GenerateRequest, ModelInfo, Tool
from paddock.worker.prompts import PromptReader, Read
from tests.text.test_round_trip import ONLY_REASONING, USER, before_end, templates

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


class _Vocab(FakeVocab):
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


def _read(template: str, *, controls: bool = False, **fields: Any) -> tuple[Read, Grammar | None]:
    vocab = _Vocab(template, controls=controls)
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


def _random_reply(grammar: Grammar, seed: int, template: str, *, controls: bool = False) -> str:
    """A random reply that the grammar allows. It leaves free text by one of the markers that end it."""
    vocab, choices, endings = _Vocab(template, controls=controls), Random(seed), _text_endings(template)
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


def _parse(read: Read, text: str) -> tuple[list[tuple[str, Any]], str, ReplyParser]:
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


def _check(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize("controls", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_required_call_matches_its_schema(name: str, controls: bool) -> None:
    read, grammar = _read(TEMPLATES[name], controls=controls, must_call=True)
    assert grammar is not None
    several = 0
    for seed in range(12):
        text = _random_reply(grammar.fork(), seed, TEMPLATES[name], controls=controls)
        calls, content, parser = _parse(read, text)
        assert calls, text
        assert not content.strip() and not parser.malformed, text
        _check(calls)
        several += len(calls) > 1
    assert several or name in SINGLE, "there may be several"


@pytest.mark.parametrize("name", TEMPLATES)
def test_one_call_of_the_named_function(name: str) -> None:
    read, grammar = _read(TEMPLATES[name], must_call=True, function="clock", parallel_calls=False)
    assert grammar is not None
    for seed in range(3):
        calls, _, _ = _parse(read, _random_reply(grammar.fork(), seed, TEMPLATES[name]))
        assert calls == [("clock", {})]


@pytest.mark.parametrize("controls", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_free_reply_is_constrained_once_it_starts_a_call(name: str, controls: bool) -> None:
    template, format = TEMPLATES[name], detect_format(TEMPLATES[name])
    vocab = _Vocab(template, controls=controls)
    read, grammar = _read(template, controls=controls)
    assert read.is_optional and grammar is not None
    for words in ("Any text: { < [ é", '{"name": "Bella", "arguments": 1}', "x >>> y\n>>>all\n", "to=", "[1] {}"):
        assert _allows(grammar, words, vocab) == "may end"
    if not format.reply_prefix:
        assert _allows(grammar, "".join(format.skipped_markers), vocab) == "may end"
    _, must = _read(template, controls=controls, must_call=True, function="plan")
    assert must is not None
    for seed in range(3):
        text = _random_reply(must.fork(), seed, template, controls=controls)
        before = [""] if name in BARE else ["", "Well."] if name == "kimi k3" else ["", f"Well.\n{format.reply_prefix}"]
        for words in before:
            assert _allows(grammar, words + text, vocab) in ("complete", "may end"), words + text
            assert _allows(grammar, words + text.replace("title", "tilte"), vocab) == "no"
            # If only the name tells a call from content, another name starts no call.
            expected = "may end" if name in (*BARE, "functionary 3.2", "muse") else "no"
            assert _allows(grammar, words + text.replace("plan", "plot"), vocab) == expected


@pytest.mark.parametrize(
    "written",
    [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant<|channel|>commentary to=functions.clock "
        "<|constrain|>json<|message|>{}",
        " to=functions.clock<|channel|>commentary json<|message|>{}",
        " to=functions.clock<|channel|>commentary <|constrain|>json<|message|>{}",
        "<|channel|>commentary to=functions.clock<|message|>{}",
        "<|channel|>commentary to=browser.search code<|message|>x",
        "<|channel|>analysis<|message|>Call to=functions.plan?<|end|><|start|>assistant<|channel|>final<|message|>No.",
    ],
)
def test_all_variants_of_harmony_are_allowed(written: str) -> None:
    _, grammar = _read(TEMPLATES["harmony"])
    assert grammar is not None
    assert _allows(grammar, written) in ("may end", "complete", "more")
    if written.endswith("{}"):
        assert _allows(grammar, written.replace("clock", "cluck")) == "no"
        assert _allows(grammar, written.replace("{}", '{"a": 1}')) == "no"


@pytest.mark.parametrize("name", BARE)
def test_a_call_without_a_marker_may_have_any_whitespace(name: str) -> None:
    read, grammar = _read(TEMPLATES[name])
    assert grammar is not None
    key = "parameters" if name == "llama 3" else "arguments"
    for written in (
        f'{{"name":"clock","{key}":{{}}}}',
        f' {{ "name" : "clock",\n"{key}": {{}}}}',
        f'{{"type": "function", "name": "clock", "{key}": {{}}}}',
    ):
        assert _allows(grammar, written) in ("may end", "complete")
        assert _allows(grammar, written.replace("{}}", '{"a": 1}}')) == "no"
        assert _parse(read, written)[0] == [("clock", {})]


# ── replies of templates ─────────────────────────────────────────────────────────────────────────────────────────────


def _template_reply(name: str, message: dict[str, Any], **fields: Any) -> tuple[str, Grammar] | None:
    """The reply as the template writes it after the prompt, and the grammar of the reply. None if the template starts
    earlier replies in another way than the next one.
    """
    vocab = _Vocab("")
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
        _, grammar = _read(template, tools=(), body=body)
        assert grammar is not None
        assert _allows(grammar, f"{think}Hm, {{.{end}\n\n12") == "may end"
        assert _allows(grammar, "12") == "may end"
        assert _allows(grammar, "Hm.") == "no"
        _, grammar = _read(template, body=body, tools=TOOLS)
        assert grammar is not None
        assert _allows(grammar, f"{think}Hm.{end}\n\n12") == "may end"
        assert _allows(grammar, "Hm.") == "no"


@pytest.mark.parametrize("kind", ["regex", "gbnf", "lark"])
def test_any_kind_of_constraint_can_follow_reasoning(kind: Any) -> None:
    source = {"regex": "[0-9]+", "gbnf": "root ::= [0-9]+", "lark": "start: /[0-9]+/"}[kind]
    _, grammar = _read("<think> </think>", tools=(), body=Constraint(kind, source, kind))
    assert grammar is not None
    assert _allows(grammar, "<think>Hm.</think>12") == "may end"
    assert _allows(grammar, "twelve") == "no"


DEEP = Tool(
    "deep",
    {
        "type": "object",
        "properties": {
            "rows": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "place": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "near": {"type": "array", "items": {"type": "string"}}},
                "required": ["name"],
                "additionalProperties": False,
            },
            "either": {"anyOf": [{"type": "integer"}, {"type": "string", "enum": ["none"]}]},
            "pair": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "maxItems": 2},
        },
        "required": ["rows", "place", "pair"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize("name", TEMPLATES)
def test_nested_values_match_their_schemas(name: str) -> None:
    read, grammar = _read(TEMPLATES[name], tools=(DEEP,), must_call=True, parallel_calls=False)
    assert grammar is not None
    for seed in range(6):
        text = _random_reply(grammar.fork(), seed, TEMPLATES[name])
        calls, content, parser = _parse(read, text)
        assert len(calls) == 1 and not content and not parser.malformed, text
        jsonschema.validate(calls[0][1], DEEP.parameters)


def test_an_unsupported_keyword_is_named() -> None:
    odd = Tool("odd", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})
    for template in ("<tool_call>", "", "<arg_key>"):
        with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
            _read(template, tools=(TOOLS[0], odd), must_call=True)
        assert (caught.value.param or "").startswith("tools[1].function.parameters")


_odd: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(
        [None, True, 3, "", "string", "object", "array", "boolean", "a", "#/$defs/a", ["string", "null"], [[]], {}]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "enum",
                    "properties",
                    "required",
                    "items",
                    "$ref",
                    "anyOf",
                    "additionalProperties",
                    "pattern",
                    "a",
                    "b",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), _odd, max_size=3),
    st.fixed_dictionaries(
        {}, optional={"required": _odd, "$defs": _odd, "type": st.just("object"), "properties": _odd}
    ),
    st.booleans(),
)
def test_any_schema_is_enforced_or_refused(name: str, named: dict[str, Any], more: dict[str, Any], must: bool) -> None:
    tool = Tool("odd", {"type": "object", "properties": named, **more})
    try:
        _, grammar = _read(TEMPLATES[name], tools=(tool,), must_call=must)
    except InvalidRequest as refused:
        assert refused.param
    else:
        assert grammar is not None or not must


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x$"}}},
        {"anyOf": [{"type": "object"}]},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"a>b": {}}},
    ],
)
def test_a_schema_that_tags_cannot_express_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _read("<arg_key>", tools=(Tool("odd", parameters),), must_call=True)
    assert (caught.value.param or "").startswith("tools[0].function.parameters")


def _allows(grammar: Grammar, text: str, vocab: _Vocab | None = None) -> str:
    grammar = grammar.fork()
    for token in (vocab or _Vocab("")).tokens(text):
        if grammar.complete or grammar.forbidden()[token] or not grammar.consume(token):
            return "no"
    return "complete" if grammar.complete else "more" if grammar.forbidden()[257] else "may end"
