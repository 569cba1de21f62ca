"""Formats of reasoning and tool calls by model family, detected by the chat template.

To add a format, add a `Format` to `FORMATS`. If no shape fits its calls, write a subclass of `Calls` in this file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paddock.text.reply.shapes.calls import Calls
from paddock.text.reply.shapes.json_calls import HeaderCalls, ObjectCalls
from paddock.text.reply.shapes.literal_calls import BraceCalls, PythonCalls
from paddock.text.reply.shapes.tag_calls import NestedTagCalls, TagCalls


@dataclass(frozen=True)
class Reasoning:
    """The markers around reasoning."""

    opening: str
    closing: str


@dataclass(frozen=True)
class Format:
    """How a model family writes its replies."""

    template_markers: tuple[str, ...]
    """A chat template whose source contains all of these uses the format."""
    calls: Calls
    reasoning: Reasoning | None = None
    """None: one of `_REASONING`, if the template contains its markers."""
    skipped_markers: tuple[str, ...] = ()
    """Markers that the parser drops."""
    reply_prefix: str = ""
    """The start of the reply, if the prompt ends with it."""
    after_reasoning: str = ""
    """The marker between reasoning and the rest of the reply, which is again the `reply_prefix`."""
    content_opening: str = ""
    """The marker before content, after the `reply_prefix` or equal to it."""
    content_closing: str = ""
    """The marker between content and a call."""
    always_reasons: bool = False
    """An empty reasoning block does not turn reasoning off."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers but those of calls."""
        reasoning = (self.reasoning.opening, self.reasoning.closing) if self.reasoning is not None else ()
        return (*self.skipped_markers, self.reply_prefix, self.after_reasoning, self.content_opening, *reasoning)


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

# ── calls that several formats share ─────────────────────────────────────────────────────────────────────────────────

_XML = TagCalls.like("<function={name}>\n{arguments}</function>\n", "<parameter={key}>\n{value}\n</parameter>\n")
_DSML = TagCalls.like(
    '<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>\n',
    '<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>\n',
)
_LFM = PythonCalls(begin="<|tool_call_start|>", end="<|tool_call_end|>")
_COMMAND_R = Format(
    ("<|START_ACTION|>",),
    ObjectCalls(
        begin="<|START_ACTION|>",
        end="<|END_ACTION|>",
        name_key="tool_name",
        arguments_key="parameters",
        array=True,
        number_key="tool_call_id",
    ),
    skipped_markers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
PLAIN_CALLS = ObjectCalls(separator="\n")
"""Calls of models whose template does not support tools."""

# ── the formats: the first that matches is used, so a more specific one comes first ──────────────────────────────────

FORMATS: tuple[Format, ...] = (
    # gpt-oss
    Format(
        ("<|channel|>analysis",),
        HeaderCalls(
            opening="<|channel|>commentary to=functions.",
            other_openings=("<|start|>assistant to=functions.", "<|channel|>analysis to=functions."),
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
        skipped_markers=(
            "<|start|>assistant",
            "<|channel|>final<|message|>",
            "<|channel|>commentary<|message|>",
            "<|end|>",
        ),
        reply_prefix="<|start|>assistant",
        after_reasoning="<|start|>assistant",
        content_opening="<|channel|>final<|message|>",
        always_reasons=True,
    ),
    # Solar Open
    Format(
        ("<|tool_call:begin|>",),
        HeaderCalls(
            begin="<|tool_calls|>",
            opening="<|tool_call:begin|>",
            header="{id}<|tool_call:name|>{name}<|tool_call:args|>",
            pattern=re.compile(r"[^<]*<\|tool_call:name\|>(?P<name>[^\s<]+)<\|tool_call:args\|>\s*"),
            closing="<|tool_call:end|>",
        ),
        Reasoning("<|think|>", "<|end|>"),
        skipped_markers=("<|begin|>assistant", "<|content|>", "<|end|>"),
        reply_prefix="<|begin|>assistant",
        after_reasoning="<|begin|>assistant",
        content_opening="<|content|>",
    ),
    # Muse
    Format(
        ("<atem:function_calls>",),
        TagCalls.like(
            '<|start|>assistant to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n'
            "{arguments}</atem:invoke>\n</atem:function_calls>",
            '<atem:parameter name="{key}">{value}</atem:parameter>\n',
            separator="<|eom|>",
        ),
        Reasoning("<|start|>assistant to=self<|message|>", "<|eom|>"),
        skipped_markers=("<|start|>assistant to=user<|message|>", "<|eom|>"),
        reply_prefix="<|start|>assistant",
        after_reasoning="<|start|>assistant",
        content_opening=" to=user<|message|>",
        always_reasons=True,
    ),
    # Kimi K3
    Format(
        ("<|open|>", "<|end_of_msg|>"),
        TagCalls.like(
            '<|open|>call tool="{name}" index="{number}"<|sep|>{arguments}<|close|>call<|sep|>',
            '<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
            begin="<|open|>tools<|sep|>",
            end="<|close|>tools<|sep|>",
        ),
        Reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        skipped_markers=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        reply_prefix="<|open|>response<|sep|>",
        content_opening="<|open|>response<|sep|>",
        content_closing="<|close|>response<|sep|>",
    ),
    # Hy3
    Format(
        ("<tool_sep{}>", ":opensource"),
        TagCalls.like(
            "<tool_call:opensource>{name}<tool_sep:opensource>\n{arguments}</tool_call:opensource>\n",
            "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>\n",
            begin="<tool_calls:opensource>\n",
            end="</tool_calls:opensource>",
        ),
        Reasoning("<think:opensource>", "</think:opensource>"),
    ),
    # Functionary 3.2
    Format(
        (">>>all",),
        HeaderCalls(opening=">>>", header="{name}\n", pattern=re.compile(r"(?P<name>[^\s{]+)\n\s*")),
        skipped_markers=(">>>all\n",),
        reply_prefix=">>>",
        content_opening="all\n",
    ),
    # GigaChat 3
    Format(
        ("'role': 'function call'",),
        ObjectCalls(opening="<|message_sep|>\n\nfunction call<|role_sep|>\n", single=True),
        skipped_markers=("<|message_sep|>",),
    ),
    # Kimi K2
    Format(
        ("<|tool_call_argument_begin|>",),
        HeaderCalls(
            begin="<|tool_calls_section_begin|>",
            opening="<|tool_call_begin|>",
            header="functions.{name}:{number}<|tool_call_argument_begin|>",
            pattern=re.compile(r"\s*(?:functions\.)?(?P<name>[^\s:<]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"),
            closing="<|tool_call_end|>",
            end="<|tool_calls_section_end|>",
        ),
    ),
    # DeepSeek V3.2
    Format(
        ("DSML", "function_calls>"),
        replace(_DSML, begin="<｜DSML｜function_calls>\n", end="</｜DSML｜function_calls>"),
    ),
    Format(("DSML", "tool_calls>"), replace(_DSML, begin="<｜DSML｜tool_calls>\n", end="</｜DSML｜tool_calls>")),
    # DeepSeek R1 and V3
    Format(
        ("<｜tool▁sep｜>", "```json"),
        HeaderCalls(
            begin="<｜tool▁calls▁begin｜>",
            opening="<｜tool▁call▁begin｜>",
            header="function<｜tool▁sep｜>{name}\n```json\n",
            pattern=re.compile(r"\s*(?:function)?<｜tool▁sep｜>(?P<name>[^\s`]+)\s*```json\s*"),
            closing="\n```<｜tool▁call▁end｜>",
            separator="\n",
            end="<｜tool▁calls▁end｜>",
        ),
    ),
    # DeepSeek V3.1
    Format(
        ("<｜tool▁sep｜>",),
        HeaderCalls(
            begin="<｜tool▁calls▁begin｜>",
            opening="<｜tool▁call▁begin｜>",
            header="{name}<｜tool▁sep｜>",
            pattern=re.compile(r"\s*(?P<name>[^\s<]+)<｜tool▁sep｜>\s*"),
            closing="<｜tool▁call▁end｜>",
            end="<｜tool▁calls▁end｜>",
        ),
    ),
    # MiniMax M2
    Format(
        ("<minimax:tool_call>",),
        TagCalls.like(
            '<invoke name="{name}">\n{arguments}</invoke>\n',
            '<parameter name="{key}">{value}</parameter>\n',
            begin="<minimax:tool_call>\n",
            end="</minimax:tool_call>",
        ),
    ),
    # Seed-OSS
    Format(
        ("<seed:tool_call>",),
        replace(
            _XML,
            begin="<seed:tool_call>\n",
            end="</seed:tool_call>",
            separator="</seed:tool_call>\n<seed:tool_call>\n",
        ),
    ),
    # MiniMax M3
    Format(
        ("]<]minimax[>[",),
        NestedTagCalls(
            begin="]<]minimax[>[<tool_call>\n",
            opening=']<]minimax[>[<invoke name="',
            name_end='">',
            prefix="]<]minimax[>[",
            closing="]<]minimax[>[</invoke>\n",
            end="]<]minimax[>[</tool_call>",
        ),
    ),
    # LFM2
    Format(("<|tool_list_start|>",), _LFM),
    Format(("List of tools: [",), _LFM),
    # GLM 4.5
    Format(
        ("<arg_key>",),
        TagCalls.like(
            "<tool_call>{name}\n{arguments}</tool_call>",
            "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
            separator="\n",
        ),
    ),
    # Qwen3-Coder
    Format(
        ("<parameter=", "<tool_call>"),
        replace(_XML, begin="<tool_call>\n", end="</tool_call>", separator="</tool_call>\n<tool_call>\n"),
    ),
    # MiniCPM
    Format(
        ('<function name="', '<param name="'),
        TagCalls.like(
            '<function name="{name}">{arguments}</function>', '<param name="{key}">{value}</param>', cdata=True
        ),
    ),
    # Functionary 3.1
    Format(
        ("<function=",),
        HeaderCalls(
            opening="<function=",
            header="{name}>",
            pattern=re.compile(r"(?P<name>[^\s>]+)>\s*"),
            closing="</function>",
        ),
    ),
    # Gemma
    Format(("<|tool_call>call:",), BraceCalls(opening="<|tool_call>call:", closing="<tool_call|>", quote='<|"|>')),
    # Command R7B and Command A
    *(
        replace(_COMMAND_R, template_markers=("<|START_ACTION|>", opening), content_opening=opening)
        for opening in ("<|START_RESPONSE|>", "<|START_TEXT|>")
    ),
    _COMMAND_R,
    # Command R+
    Format(
        ("Action:", "tool_name"),
        ObjectCalls(
            begin="Action:\n```json\n", end="\n```", name_key="tool_name", arguments_key="parameters", array=True
        ),
    ),
    # Mistral, newer
    Format(
        ("[TOOL_CALLS]", "[ARGS]"),
        HeaderCalls(
            opening="[TOOL_CALLS]",
            header="{name}{kind}[ARGS]",
            kinds=("", "[CALL_ID]{id}"),
            pattern=re.compile(r"\s*(?P<name>[^\s\[{]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*"),
        ),
    ),
    # Mistral, older
    Format(("[TOOL_CALLS]",), ObjectCalls(begin="[TOOL_CALLS]", array=True, id_key="id")),
    # Apertus
    Format(
        ("<|tools_prefix|>",), ObjectCalls(begin="<|tools_prefix|>", end="<|tools_suffix|>", array=True, keyed=True)
    ),
    # Nemotron
    Format(("<TOOLCALL>",), ObjectCalls(begin="<TOOLCALL>", end="</TOOLCALL>", array=True)),
    # Apriel
    Format(("<tool_calls>[",), ObjectCalls(begin="<tool_calls>", end="</tool_calls>", array=True)),
    # MiniMax M1
    Format(("<tool_calls>",), ObjectCalls(begin="<tool_calls>\n", end="</tool_calls>", closing="\n")),
    # Granite
    Format(("<|tool_call|>",), ObjectCalls(begin="<|tool_call|>", array=True)),
    # GigaChat 3.1
    Format(("<|function_call|>",), ObjectCalls(opening="<|function_call|>", single=True)),
    # Hermes, Qwen
    Format(("<tool_call>",), ObjectCalls(opening="<tool_call>\n", closing="\n</tool_call>", separator="\n")),
    # Firefunction
    Format(("functools[",), ObjectCalls(begin="functools", array=True)),
    # Llama 3
    Format(
        ('{"name": function name, "parameters"',),
        ObjectCalls(arguments_key="parameters", other_openings=("<|python_tag|>",), separator="; "),
    ),
    # every other template
    Format((), PLAIN_CALLS),
)


def detect_format(template: str, formats: Sequence[Format] = FORMATS) -> Format:
    """The format that a chat template uses: the template shows how the model writes its replies."""
    format = next(one for one in formats if all(marker in template for marker in one.template_markers))
    if format.reasoning is not None:
        return format
    reasoning = next((one for one in _REASONING if one.opening in template and one.closing in template), None)
    return replace(format, reasoning=reasoning)
