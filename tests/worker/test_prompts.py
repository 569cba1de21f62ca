"""Constraints of calls: the parser reads every reply that a grammar allows as calls that match their schemas."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidRequest
from paddock.text.reply.formats import detect_format
from paddock.types import Tool
from tests.tiers import full
from tests.worker.reply_grammars import (
    BARE,
    SINGLE,
    TEMPLATES,
    TOOLS,
    MarkerVocab,
    allows,
    check_calls,
    parse_reply,
    random_reply,
    read_prompt,
)


@full
@pytest.mark.parametrize("controls", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_required_call_matches_its_schema(name: str, controls: bool) -> None:
    read, grammar = read_prompt(TEMPLATES[name], controls=controls, must_call=True)
    assert grammar is not None
    several = 0
    for seed in range(12):
        text = random_reply(grammar.fork(), seed, TEMPLATES[name], controls=controls)
        calls, content, parser = parse_reply(read, text)
        assert calls, text
        assert not content.strip() and not parser.malformed, text
        check_calls(calls)
        several += len(calls) > 1
    assert several or name in SINGLE, "there may be several"


@pytest.mark.parametrize("name", TEMPLATES)
def test_one_call_of_the_named_function(name: str) -> None:
    read, grammar = read_prompt(TEMPLATES[name], must_call=True, function="clock", parallel_calls=False)
    assert grammar is not None
    for seed in range(3):
        calls, _, _ = parse_reply(read, random_reply(grammar.fork(), seed, TEMPLATES[name]))
        assert calls == [("clock", {})]


@pytest.mark.parametrize("controls", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_free_reply_is_constrained_once_it_starts_a_call(name: str, controls: bool) -> None:
    template, format = TEMPLATES[name], detect_format(TEMPLATES[name])
    vocab = MarkerVocab(template, controls=controls)
    read, grammar = read_prompt(template, controls=controls)
    assert read.is_optional and grammar is not None
    for words in ("Any text: { < [ é", '{"name": "Bella", "arguments": 1}', "x >>> y\n>>>all\n", "to=", "[1] {}"):
        assert allows(grammar, words, vocab) == "may end"
    if not format.reply_prefix:
        assert allows(grammar, "".join(format.skipped_markers), vocab) == "may end"
    _, must = read_prompt(template, controls=controls, must_call=True, function="plan")
    assert must is not None
    for seed in range(3):
        text = random_reply(must.fork(), seed, template, controls=controls)
        before = [""] if name in BARE else ["", "Well."] if name == "kimi k3" else ["", f"Well.\n{format.reply_prefix}"]
        for words in before:
            assert allows(grammar, words + text, vocab) in ("complete", "may end"), words + text
            assert allows(grammar, words + text.replace("title", "tilte"), vocab) == "no"
            # If only the name tells a call from content, another name starts no call.
            expected = "may end" if name in (*BARE, "functionary 3.2", "muse") else "no"
            assert allows(grammar, words + text.replace("plan", "plot"), vocab) == expected


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
    _, grammar = read_prompt(TEMPLATES["harmony"])
    assert grammar is not None
    assert allows(grammar, written) in ("may end", "complete", "more")
    if written.endswith("{}"):
        assert allows(grammar, written.replace("clock", "cluck")) == "no"
        assert allows(grammar, written.replace("{}", '{"a": 1}')) == "no"


@pytest.mark.parametrize("name", BARE)
def test_a_call_without_a_marker_may_have_any_whitespace(name: str) -> None:
    read, grammar = read_prompt(TEMPLATES[name])
    assert grammar is not None
    key = "parameters" if name == "llama 3" else "arguments"
    for written in (
        f'{{"name":"clock","{key}":{{}}}}',
        f' {{ "name" : "clock",\n"{key}": {{}}}}',
        f'{{"type": "function", "name": "clock", "{key}": {{}}}}',
    ):
        assert allows(grammar, written) in ("may end", "complete")
        assert allows(grammar, written.replace("{}}", '{"a": 1}}')) == "no"
        assert parse_reply(read, written)[0] == [("clock", {})]


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


@full
@pytest.mark.parametrize("name", TEMPLATES)
def test_nested_values_match_their_schemas(name: str) -> None:
    read, grammar = read_prompt(TEMPLATES[name], tools=(DEEP,), must_call=True, parallel_calls=False)
    assert grammar is not None
    for seed in range(6):
        text = random_reply(grammar.fork(), seed, TEMPLATES[name])
        calls, content, parser = parse_reply(read, text)
        assert len(calls) == 1 and not content and not parser.malformed, text
        jsonschema.validate(calls[0][1], DEEP.parameters)


def test_an_unsupported_keyword_is_named() -> None:
    odd = Tool("odd", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})
    for template in ("<tool_call>", "", "<arg_key>"):
        with pytest.raises(InvalidRequest, match="uniqueItems") as caught:
            read_prompt(template, tools=(TOOLS[0], odd), must_call=True)
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
        _, grammar = read_prompt(TEMPLATES[name], tools=(tool,), must_call=must)
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
        read_prompt("<arg_key>", tools=(Tool("odd", parameters),), must_call=True)
    assert (caught.value.param or "").startswith("tools[0].function.parameters")
