"""How models write what is more than words: the formats of their thoughts and tool calls, known by the chat template.

A template shows how earlier replies are written, which is how the next one will be. Whitespace in these markers is what
models write; what they read as is the same with or without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class Calls:
    """Where tool calls begin and end: `begin` and `end` stand around all, `opening` and `closing` around each."""

    signs: tuple[str, ...] = ()
    """What a template has in its source that speaks this format: all of these."""
    begin: str = ""
    end: str = ""
    opening: str = ""
    closing: str = ""
    separator: str = ""
    also: tuple[str, ...] = ()
    """Other ways in which a call may begin."""
    single: bool = False
    """There is one call in a reply."""

    @cached_property
    def triggers(self) -> tuple[str, ...]:
        """What begins the first call. None where a reply that is JSON from its first character on is a call."""
        return tuple(filter(None, ((self.begin or self.opening).strip(), *self.also)))

    @property
    def markers(self) -> tuple[str, ...]:
        """All that is written around calls and inside them."""
        return (self.begin, self.end, self.opening, self.closing, self.separator, *self.also)


@dataclass(frozen=True)
class ObjectCalls(Calls):
    """Each call is a JSON object with the function's name and its arguments."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    array: bool = False
    """They stand in a JSON array."""
    keyed: bool = False
    """The name is itself the key of the arguments."""


@dataclass(frozen=True)
class NamedCalls(Calls):
    """Each call is a header with the name and then the arguments as JSON."""

    header: str = "{name}"
    """As written; `{number}` is any number."""
    pattern: re.Pattern[str] = re.compile(r"(?P<name>[^\s<\[{]+)")
    """As read, up to the arguments' first brace."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, self.header)


@dataclass(frozen=True)
class TaggedCalls(Calls):
    """Each call is the name and then every argument between tags of its own: texts as they are, all else as JSON."""

    name_end: str = ""
    key_opening: str = ""
    key_closing: str = ""
    value_opening: str = ""
    value_closing: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        inside = (self.name_end, self.key_opening, self.key_closing, self.value_opening, self.value_closing)
        return (*super().markers, *inside)

    @cached_property
    def value_mark(self) -> str:
        """What ends a key and begins its value, as read: some formats say before it whether the value is a text."""
        return self.value_opening.strip().partition('{text}"')[2] or self.value_opening.strip()


@dataclass(frozen=True)
class BracedCalls(Calls):
    """Each call is the name and then an object that is JSON but for bare keys and a quotation mark of its own."""

    quote: str = '"'

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, self.quote)


@dataclass(frozen=True)
class Reasoning:
    """Thoughts stand between these."""

    opening: str
    closing: str


@dataclass(frozen=True)
class Format:
    """How one family of models writes its replies."""

    calls: Calls
    reasoning: Reasoning | None = None
    silent: tuple[str, ...] = ()
    """Markers that are neither content nor the beginning of anything."""
    lead: str = ""
    """The part of such a marker or trigger that the prompt's end has said already."""
    turn: str = ""
    """What stands between thoughts and what follows them."""
    content_opening: str = ""


_XML = TaggedCalls(
    opening="<function=",
    name_end=">\n",
    key_opening="<parameter=",
    value_opening=">\n",
    value_closing="\n</parameter>\n",
    closing="</function>\n",
)
_DSML = TaggedCalls(
    opening='<｜DSML｜invoke name="',
    name_end='">\n',
    key_opening='<｜DSML｜parameter name="',
    key_closing='"',
    value_opening=' string="{text}">',
    value_closing="</｜DSML｜parameter>\n",
    closing="</｜DSML｜invoke>\n",
)
_HARMONY = NamedCalls(
    signs=("<|channel|>analysis",),
    opening="<|channel|>commentary to=functions.",
    also=("<|start|>assistant to=functions.", "<|channel|>analysis to=functions."),
    header="{name} <|constrain|>json<|message|>",
    pattern=re.compile(r"(?P<name>[^\s<]+)(?:\s|<\|channel\|>\w+|<\|constrain\|>|json)*<\|message\|>\s*"),
    closing="<|call|>",
    single=True,
)
_SOLAR = NamedCalls(
    signs=("<|tool_call:begin|>",),
    begin="<|tool_calls|>",
    opening="<|tool_call:begin|>",
    header="{number}<|tool_call:name|>{name}<|tool_call:args|>",
    pattern=re.compile(r"[^<]*<\|tool_call:name\|>(?P<name>[^\s<]+)<\|tool_call:args\|>\s*"),
    closing="<|tool_call:end|>",
)
_FUNCTIONARY = NamedCalls(
    signs=(">>>all",),
    opening=">>>",
    header="{name}\n",
    pattern=re.compile(r"(?P<name>[^\s{]+)\n\s*"),
)
_COMMAND_R = ObjectCalls(
    signs=("<|START_ACTION|>",),
    begin="<|START_ACTION|>",
    end="<|END_ACTION|>",
    name_key="tool_name",
    arguments_key="parameters",
    array=True,
)

# The first whose signs are all there; so what is more particular comes first.
_CALLS: tuple[Calls, ...] = (
    _HARMONY,
    NamedCalls(
        signs=("<|tool_call_argument_begin|>",),
        begin="<|tool_calls_section_begin|>",
        opening="<|tool_call_begin|>",
        header="functions.{name}:{number}<|tool_call_argument_begin|>",
        pattern=re.compile(r"\s*(?:functions\.)?(?P<name>[^\s:<]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"),
        closing="<|tool_call_end|>",
        end="<|tool_calls_section_end|>",
    ),
    _SOLAR,
    replace(
        _DSML,
        signs=("DSML", "function_calls>"),
        begin="<｜DSML｜function_calls>\n",
        end="</｜DSML｜function_calls>",
    ),
    replace(_DSML, signs=("DSML", "tool_calls>"), begin="<｜DSML｜tool_calls>\n", end="</｜DSML｜tool_calls>"),
    NamedCalls(
        signs=("<｜tool▁sep｜>", "```json"),
        begin="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁call▁begin｜>",
        header="function<｜tool▁sep｜>{name}\n```json\n",
        pattern=re.compile(r"\s*(?:function)?<｜tool▁sep｜>(?P<name>[^\s`]+)\s*```json\s*"),
        closing="\n```<｜tool▁call▁end｜>",
        separator="\n",
        end="<｜tool▁calls▁end｜>",
    ),
    NamedCalls(
        signs=("<｜tool▁sep｜>",),
        begin="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁call▁begin｜>",
        header="{name}<｜tool▁sep｜>",
        pattern=re.compile(r"\s*(?P<name>[^\s<]+)<｜tool▁sep｜>\s*"),
        closing="<｜tool▁call▁end｜>",
        end="<｜tool▁calls▁end｜>",
    ),
    TaggedCalls(
        signs=("<minimax:tool_call>",),
        begin="<minimax:tool_call>\n",
        opening='<invoke name="',
        name_end='">\n',
        key_opening='<parameter name="',
        key_closing='"',
        value_opening=">",
        value_closing="</parameter>\n",
        closing="</invoke>\n",
        end="</minimax:tool_call>",
    ),
    replace(_XML, signs=("<seed:tool_call>",), begin="<seed:tool_call>\n", end="</seed:tool_call>"),
    TaggedCalls(
        signs=("<arg_key>",),
        opening="<tool_call>",
        name_end="\n",
        key_opening="<arg_key>",
        key_closing="</arg_key>\n",
        value_opening="<arg_value>",
        value_closing="</arg_value>\n",
        closing="</tool_call>",
        separator="\n",
    ),
    replace(
        _XML,
        signs=("<parameter=", "<tool_call>"),
        begin="<tool_call>\n",
        end="</tool_call>",
        separator="</tool_call>\n<tool_call>\n",
    ),
    TaggedCalls(
        signs=('<function name="', '<param name="'),
        opening='<function name="',
        name_end='">',
        key_opening='<param name="',
        key_closing='"',
        value_opening=">",
        value_closing="</param>",
        closing="</function>",
    ),
    NamedCalls(
        signs=("<function=",),
        opening="<function=",
        header="{name}>",
        pattern=re.compile(r"(?P<name>[^\s>]+)>\s*"),
        closing="</function>",
    ),
    _FUNCTIONARY,
    BracedCalls(signs=("<|tool_call>call:",), opening="<|tool_call>call:", closing="<tool_call|>", quote='<|"|>'),
    _COMMAND_R,
    ObjectCalls(
        signs=("Action:", "tool_name"),
        begin="Action:\n```json\n",
        end="\n```",
        name_key="tool_name",
        arguments_key="parameters",
        array=True,
    ),
    NamedCalls(
        signs=("[TOOL_CALLS]", "[ARGS]"),
        opening="[TOOL_CALLS]",
        header="{name}[ARGS]",
        pattern=re.compile(r"\s*(?P<name>[^\s\[{]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*"),
    ),
    ObjectCalls(signs=("[TOOL_CALLS]",), begin="[TOOL_CALLS]", array=True),
    ObjectCalls(signs=("<|tools_prefix|>",), begin="<|tools_prefix|>", end="<|tools_suffix|>", array=True, keyed=True),
    ObjectCalls(signs=("<TOOLCALL>",), begin="<TOOLCALL>", end="</TOOLCALL>", array=True),
    ObjectCalls(signs=("<tool_calls>[",), begin="<tool_calls>", end="</tool_calls>", array=True),
    ObjectCalls(signs=("<tool_calls>",), begin="<tool_calls>\n", end="</tool_calls>", closing="\n"),
    ObjectCalls(signs=("<|tool_call|>",), begin="<|tool_call|>", array=True),
    ObjectCalls(signs=("<|function_call|>",), opening="<|function_call|>", single=True),
    ObjectCalls(signs=("<tool_call>",), opening="<tool_call>\n", closing="\n</tool_call>", separator="\n"),
    ObjectCalls(signs=("functools[",), begin="functools", array=True),
    ObjectCalls(
        signs=('{"name": function name, "parameters"',),
        arguments_key="parameters",
        also=("<|python_tag|>",),
    ),
)
PLAIN_CALLS = ObjectCalls()
"""What models are told to write whose template knows no tools."""

_REASONING = (
    Reasoning("<seed:think>", "</seed:think>"),
    Reasoning("<mm:think>", "</mm:think>"),
    Reasoning("[THINK]", "[/THINK]"),
    Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),
    Reasoning("<|inner_prefix|>", "<|inner_suffix|>"),
    Reasoning("<|channel>thought", "<channel|>"),
    Reasoning("<think>", "</think>"),
    Reasoning("<thinking>", "</thinking>"),
)


def recognise(template: str) -> Format:
    """The format that a chat template's source speaks. Where it knows no tools, calls are plain JSON."""
    calls = next((calls for calls in _CALLS if all(sign in template for sign in calls.signs)), PLAIN_CALLS)
    reasoning = next((one for one in _REASONING if one.opening in template and one.closing in template), None)
    if calls is _HARMONY:
        return Format(
            calls,
            Reasoning("<|channel|>analysis<|message|>", "<|end|>"),
            silent=("<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>", "<|end|>"),
            lead="<|start|>assistant",
            turn="<|start|>assistant",
            content_opening="<|channel|>final<|message|>",
        )
    if calls is _SOLAR:
        return Format(
            calls,
            Reasoning("<|think|>", "<|end|>"),
            silent=("<|begin|>assistant", "<|content|>", "<|end|>"),
            lead="<|begin|>assistant",
            turn="<|begin|>assistant",
            content_opening="<|content|>",
        )
    if calls is _FUNCTIONARY:
        return Format(calls, reasoning, silent=(">>>all\n",), lead=">>>", content_opening="all\n")
    if calls is _COMMAND_R:
        silent = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
        opening = next((marker for marker in silent if marker in template), "")
        return Format(calls, reasoning, silent=silent, content_opening=opening)
    return Format(calls, reasoning)
