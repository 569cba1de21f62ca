"""The formats of thoughts and tool calls that model families write, known by the chat template.

A template shows how earlier replies are written, which is how the next one will be.
"""

from __future__ import annotations

import re
from dataclasses import replace

from paddock.text.reply.shapes import (
    BracedCalls,
    Calls,
    Format,
    NamedCalls,
    NestedCalls,
    ObjectCalls,
    PythonCalls,
    Reasoning,
    TaggedCalls,
)

# Those that are more than calls and thoughts between markers.
_OWN = (
    # gpt-oss
    Format(
        NamedCalls(
            signs=("<|channel|>analysis",),
            opening="<|channel|>commentary to=functions.",
            also=("<|start|>assistant to=functions.", "<|channel|>analysis to=functions."),
            header="{name}{kind}<|message|>",
            kinds=(
                " <|constrain|>json",
                "<|channel|>commentary json",
                "<|channel|>commentary <|constrain|>json",
                " json",
                "",
            ),
            pattern=re.compile(r"(?P<name>[^\s<]+)(?:\s|<\|channel\|>\w+|<\|constrain\|>|json)*<\|message\|>\s*"),
            closing="<|call|>",
            single=True,
        ),
        Reasoning("<|channel|>analysis<|message|>", "<|end|>"),
        silent=("<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>", "<|end|>"),
        lead="<|start|>assistant",
        turn="<|start|>assistant",
        content_opening="<|channel|>final<|message|>",
        must_think=True,
    ),
    # Solar Open
    Format(
        NamedCalls(
            signs=("<|tool_call:begin|>",),
            begin="<|tool_calls|>",
            opening="<|tool_call:begin|>",
            header="{id}<|tool_call:name|>{name}<|tool_call:args|>",
            pattern=re.compile(r"[^<]*<\|tool_call:name\|>(?P<name>[^\s<]+)<\|tool_call:args\|>\s*"),
            closing="<|tool_call:end|>",
        ),
        Reasoning("<|think|>", "<|end|>"),
        silent=("<|begin|>assistant", "<|content|>", "<|end|>"),
        lead="<|begin|>assistant",
        turn="<|begin|>assistant",
        content_opening="<|content|>",
    ),
    # Muse
    Format(
        TaggedCalls(
            signs=("<atem:function_calls>",),
            opening="<|start|>assistant to=",
            name_end='<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n',
            key_opening='<atem:parameter name="',
            key_closing='"',
            value_opening=">",
            value_closing="</atem:parameter>\n",
            closing="</atem:invoke>\n</atem:function_calls>",
            separator="<|eom|>",
        ),
        Reasoning("<|start|>assistant to=self<|message|>", "<|eom|>"),
        silent=("<|start|>assistant to=user<|message|>", "<|eom|>"),
        lead="<|start|>assistant",
        turn="<|start|>assistant",
        content_opening=" to=user<|message|>",
        must_think=True,
    ),
    # Kimi K3
    Format(
        TaggedCalls(
            signs=("<|open|>", "<|end_of_msg|>"),
            begin="<|open|>tools<|sep|>",
            opening='<|open|>call tool="',
            name_end='" index="{number}"<|sep|>',
            key_opening='<|open|>argument key="',
            key_closing='"',
            value_opening=' type="{type}"<|sep|>',
            value_closing="<|close|>argument<|sep|>",
            closing="<|close|>call<|sep|>",
            end="<|close|>tools<|sep|>",
        ),
        Reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        silent=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        lead="<|open|>response<|sep|>",
        content_opening="<|open|>response<|sep|>",
        content_closing="<|close|>response<|sep|>",
    ),
    # Hy3
    Format(
        TaggedCalls(
            signs=("<tool_sep{}>", ":opensource"),
            begin="<tool_calls:opensource>\n",
            opening="<tool_call:opensource>",
            name_end="<tool_sep:opensource>\n",
            key_opening="<arg_key:opensource>",
            key_closing="</arg_key:opensource>\n",
            value_opening="<arg_value:opensource>",
            value_closing="</arg_value:opensource>\n",
            closing="</tool_call:opensource>\n",
            end="</tool_calls:opensource>",
        ),
        Reasoning("<think:opensource>", "</think:opensource>"),
    ),
    # Functionary 3.2
    Format(
        NamedCalls(
            signs=(">>>all",),
            opening=">>>",
            header="{name}\n",
            pattern=re.compile(r"(?P<name>[^\s{]+)\n\s*"),
        ),
        silent=(">>>all\n",),
        lead=">>>",
        content_opening="all\n",
    ),
    # GigaChat 3
    Format(
        ObjectCalls(
            signs=("'role': 'function call'",),
            opening="<|message_sep|>\n\nfunction call<|role_sep|>\n",
            single=True,
        ),
        silent=("<|message_sep|>",),
    ),
)

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
_LFM = PythonCalls(begin="<|tool_call_start|>", end="<|tool_call_end|>")
_COMMAND_R = ObjectCalls(
    signs=("<|START_ACTION|>",),
    begin="<|START_ACTION|>",
    end="<|END_ACTION|>",
    name_key="tool_name",
    arguments_key="parameters",
    array=True,
    number_key="tool_call_id",
)

# The first whose signs are all there; so what is more particular comes first.
_CALLS: tuple[Calls, ...] = (
    NamedCalls(
        signs=("<|tool_call_argument_begin|>",),
        begin="<|tool_calls_section_begin|>",
        opening="<|tool_call_begin|>",
        header="functions.{name}:{number}<|tool_call_argument_begin|>",
        pattern=re.compile(r"\s*(?:functions\.)?(?P<name>[^\s:<]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"),
        closing="<|tool_call_end|>",
        end="<|tool_calls_section_end|>",
    ),
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
    replace(
        _XML,
        signs=("<seed:tool_call>",),
        begin="<seed:tool_call>\n",
        end="</seed:tool_call>",
        separator="</seed:tool_call>\n<seed:tool_call>\n",
    ),
    NestedCalls(
        signs=("]<]minimax[>[",),
        begin="]<]minimax[>[<tool_call>\n",
        opening=']<]minimax[>[<invoke name="',
        name_end='">',
        prefix="]<]minimax[>[",
        closing="]<]minimax[>[</invoke>\n",
        end="]<]minimax[>[</tool_call>",
    ),
    replace(_LFM, signs=("<|tool_list_start|>",)),
    replace(_LFM, signs=("List of tools: [",)),
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
        cdata=True,
        closing="</function>",
    ),
    NamedCalls(
        signs=("<function=",),
        opening="<function=",
        header="{name}>",
        pattern=re.compile(r"(?P<name>[^\s>]+)>\s*"),
        closing="</function>",
    ),
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
        header="{name}{kind}[ARGS]",
        kinds=("", "[CALL_ID]{id}"),
        pattern=re.compile(r"\s*(?P<name>[^\s\[{]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*"),
    ),
    ObjectCalls(signs=("[TOOL_CALLS]",), begin="[TOOL_CALLS]", array=True, id_key="id"),
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
        separator="; ",
    ),
)
PLAIN_CALLS = ObjectCalls(separator="\n")
"""What models are told to write whose template knows no tools."""

_REASONING = (
    Reasoning("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
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
    if own := next((format for format in _OWN if _speaks(template, format.calls)), None):
        return own
    calls = next((calls for calls in _CALLS if _speaks(template, calls)), PLAIN_CALLS)
    reasoning = next((one for one in _REASONING if one.opening in template and one.closing in template), None)
    if calls is not _COMMAND_R:
        return Format(calls, reasoning)
    silent = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
    opening = next((marker for marker in silent if marker in template), "")
    return Format(calls, reasoning, silent=silent, content_opening=opening)


def _speaks(template: str, calls: Calls) -> bool:
    return all(sign in template for sign in calls.signs)
