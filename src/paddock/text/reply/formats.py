"""Formats of reasoning and tool calls by model family, detected by the chat template.

To add a format, add a declaration to `FORMATS`. If its calls have a new shape, write a subclass of `Format` in this
file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from paddock.text.reply.format import Format, Reasoning
from paddock.text.reply.json_formats import HeaderFormat, ObjectFormat
from paddock.text.reply.literal_formats import BraceFormat, PythonFormat
from paddock.text.reply.tag_formats import NestedTagFormat, TagFormat

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

# ── what several formats share ───────────────────────────────────────────────────────────────────────────────────────

_XML = TagFormat(
    call="<function={name}>\n{arguments}</function>\n", argument="<parameter={key}>\n{value}\n</parameter>\n"
)
_DSML = TagFormat(
    call='<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>\n',
    argument='<｜DSML｜parameter name="{key}" string="{is_string}">{value}</｜DSML｜parameter>\n',
)
_LFM = PythonFormat(section="<|tool_call_start|>{calls}<|tool_call_end|>")
_COMMAND_R = ObjectFormat(
    ("<|START_ACTION|>",),
    section="<|START_ACTION|>{calls}<|END_ACTION|>",
    name_key="tool_name",
    arguments_key="parameters",
    array=True,
    number_key="tool_call_id",
    skipped_markers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
PLAIN = ObjectFormat(separator="\n")
"""For templates that do not support tools, or that no other format matches."""

# ── the formats: the first that matches is used, so a more specific one comes first ──────────────────────────────────

FORMATS: tuple[Format, ...] = (
    # gpt-oss
    HeaderFormat(
        ("<|channel|>analysis",),
        Reasoning("<|channel|>analysis<|message|>", "<|end|>"),
        call="<|channel|>commentary to=functions.{header}<|call|>",
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
        single=True,
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
    HeaderFormat(
        ("<|tool_call:begin|>",),
        Reasoning("<|think|>", "<|end|>"),
        section="<|tool_calls|>{calls}",
        call="<|tool_call:begin|>{header}<|tool_call:end|>",
        header="{id}<|tool_call:name|>{name}<|tool_call:args|>",
        pattern=re.compile(r"[^<]*<\|tool_call:name\|>(?P<name>[^\s<]+)<\|tool_call:args\|>\s*"),
        skipped_markers=("<|begin|>assistant", "<|content|>", "<|end|>"),
        reply_prefix="<|begin|>assistant",
        after_reasoning="<|begin|>assistant",
        content_opening="<|content|>",
    ),
    # Muse
    TagFormat(
        ("<atem:function_calls>",),
        Reasoning("<|start|>assistant to=self<|message|>", "<|eom|>"),
        call='<|start|>assistant to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n'
        "{arguments}</atem:invoke>\n</atem:function_calls>",
        argument='<atem:parameter name="{key}">{value}</atem:parameter>\n',
        separator="<|eom|>",
        skipped_markers=("<|start|>assistant to=user<|message|>", "<|eom|>"),
        reply_prefix="<|start|>assistant",
        after_reasoning="<|start|>assistant",
        content_opening=" to=user<|message|>",
        always_reasons=True,
    ),
    # Kimi K3
    TagFormat(
        ("<|open|>", "<|end_of_msg|>"),
        Reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        section="<|open|>tools<|sep|>{calls}<|close|>tools<|sep|>",
        call='<|open|>call tool="{name}" index="{number}"<|sep|>{arguments}<|close|>call<|sep|>',
        argument='<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
        skipped_markers=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        reply_prefix="<|open|>response<|sep|>",
        content_opening="<|open|>response<|sep|>",
        content_closing="<|close|>response<|sep|>",
    ),
    # Hy3
    TagFormat(
        ("<tool_sep{}>", ":opensource"),
        Reasoning("<think:opensource>", "</think:opensource>"),
        section="<tool_calls:opensource>\n{calls}</tool_calls:opensource>",
        call="<tool_call:opensource>{name}<tool_sep:opensource>\n{arguments}</tool_call:opensource>\n",
        argument="<arg_key:opensource>{key}</arg_key:opensource>\n"
        "<arg_value:opensource>{value}</arg_value:opensource>\n",
    ),
    # Functionary 3.2
    HeaderFormat(
        (">>>all",),
        call=">>>{header}",
        header="{name}\n",
        pattern=re.compile(r"(?P<name>[^\s{]+)\n\s*"),
        skipped_markers=(">>>all\n",),
        reply_prefix=">>>",
        content_opening="all\n",
    ),
    # GigaChat 3
    ObjectFormat(
        ("'role': 'function call'",),
        call="<|message_sep|>\n\nfunction call<|role_sep|>\n{call}",
        single=True,
        skipped_markers=("<|message_sep|>",),
    ),
    # Kimi K2
    HeaderFormat(
        ("<|tool_call_argument_begin|>",),
        section="<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>",
        call="<|tool_call_begin|>{header}<|tool_call_end|>",
        header="functions.{name}:{number}<|tool_call_argument_begin|>",
        pattern=re.compile(r"\s*(?:functions\.)?(?P<name>[^\s:<]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"),
    ),
    # DeepSeek V3.2
    replace(
        _DSML,
        template_markers=("DSML", "function_calls>"),
        section="<｜DSML｜function_calls>\n{calls}</｜DSML｜function_calls>",
    ),
    replace(
        _DSML,
        template_markers=("DSML", "tool_calls>"),
        section="<｜DSML｜tool_calls>\n{calls}</｜DSML｜tool_calls>",
    ),
    # DeepSeek R1 and V3
    HeaderFormat(
        ("<｜tool▁sep｜>", "```json"),
        section="<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>",
        call="<｜tool▁call▁begin｜>{header}\n```<｜tool▁call▁end｜>",
        header="function<｜tool▁sep｜>{name}\n```json\n",
        pattern=re.compile(r"\s*(?:function)?<｜tool▁sep｜>(?P<name>[^\s`]+)\s*```json\s*"),
        separator="\n",
    ),
    # DeepSeek V3.1
    HeaderFormat(
        ("<｜tool▁sep｜>",),
        section="<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>",
        call="<｜tool▁call▁begin｜>{header}<｜tool▁call▁end｜>",
        header="{name}<｜tool▁sep｜>",
        pattern=re.compile(r"\s*(?P<name>[^\s<]+)<｜tool▁sep｜>\s*"),
    ),
    # MiniMax M2
    TagFormat(
        ("<minimax:tool_call>",),
        section="<minimax:tool_call>\n{calls}</minimax:tool_call>",
        call='<invoke name="{name}">\n{arguments}</invoke>\n',
        argument='<parameter name="{key}">{value}</parameter>\n',
    ),
    # Seed-OSS
    replace(
        _XML,
        template_markers=("<seed:tool_call>",),
        section="<seed:tool_call>\n{calls}</seed:tool_call>",
        separator="</seed:tool_call>\n<seed:tool_call>\n",
    ),
    # MiniMax M3
    NestedTagFormat(
        ("]<]minimax[>[",),
        section="]<]minimax[>[<tool_call>\n{calls}]<]minimax[>[</tool_call>",
        call=']<]minimax[>[<invoke name="{name}">{arguments}]<]minimax[>[</invoke>\n',
        prefix="]<]minimax[>[",
    ),
    # LFM2
    replace(_LFM, template_markers=("<|tool_list_start|>",)),
    replace(_LFM, template_markers=("List of tools: [",)),
    # GLM 4.5
    TagFormat(
        ("<arg_key>",),
        call="<tool_call>{name}\n{arguments}</tool_call>",
        argument="<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
        separator="\n",
    ),
    # Qwen3-Coder
    replace(
        _XML,
        template_markers=("<parameter=", "<tool_call>"),
        section="<tool_call>\n{calls}</tool_call>",
        separator="</tool_call>\n<tool_call>\n",
    ),
    # MiniCPM
    TagFormat(
        ('<function name="', '<param name="'),
        call='<function name="{name}">{arguments}</function>',
        argument='<param name="{key}">{value}</param>',
        cdata=True,
    ),
    # Functionary 3.1
    HeaderFormat(
        ("<function=",),
        call="<function={header}</function>",
        header="{name}>",
        pattern=re.compile(r"(?P<name>[^\s>]+)>\s*"),
    ),
    # Gemma
    BraceFormat(("<|tool_call>call:",), call="<|tool_call>call:{call}<tool_call|>", quote='<|"|>'),
    # Command R7B and Command A
    *(
        replace(_COMMAND_R, template_markers=("<|START_ACTION|>", opening), content_opening=opening)
        for opening in ("<|START_RESPONSE|>", "<|START_TEXT|>")
    ),
    _COMMAND_R,
    # Command R+
    ObjectFormat(
        ("Action:", "tool_name"),
        section="Action:\n```json\n{calls}\n```",
        name_key="tool_name",
        arguments_key="parameters",
        array=True,
    ),
    # Mistral, newer
    HeaderFormat(
        ("[TOOL_CALLS]", "[ARGS]"),
        call="[TOOL_CALLS]{header}",
        header="{name}{kind}[ARGS]",
        kinds=("", "[CALL_ID]{id}"),
        pattern=re.compile(r"\s*(?P<name>[^\s\[{]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*"),
    ),
    # Mistral, older
    ObjectFormat(("[TOOL_CALLS]",), section="[TOOL_CALLS]{calls}", array=True, id_key="id"),
    # Apertus
    ObjectFormat(("<|tools_prefix|>",), section="<|tools_prefix|>{calls}<|tools_suffix|>", array=True, keyed=True),
    # Nemotron
    ObjectFormat(("<TOOLCALL>",), section="<TOOLCALL>{calls}</TOOLCALL>", array=True),
    # Apriel
    ObjectFormat(("<tool_calls>[",), section="<tool_calls>{calls}</tool_calls>", array=True),
    # MiniMax M1
    ObjectFormat(("<tool_calls>",), section="<tool_calls>\n{calls}</tool_calls>", call="{call}\n"),
    # Granite
    ObjectFormat(("<|tool_call|>",), section="<|tool_call|>{calls}", array=True),
    # GigaChat 3.1
    ObjectFormat(("<|function_call|>",), call="<|function_call|>{call}", single=True),
    # Hermes, Qwen
    ObjectFormat(("<tool_call>",), call="<tool_call>\n{call}\n</tool_call>", separator="\n"),
    # Firefunction
    ObjectFormat(("functools[",), section="functools{calls}", array=True),
    # Llama 3
    ObjectFormat(
        ('{"name": function name, "parameters"',),
        arguments_key="parameters",
        other_openings=("<|python_tag|>",),
        separator="; ",
    ),
    PLAIN,
)


def detect_format(template: str, formats: Sequence[Format] = FORMATS) -> Format:
    """The format that a chat template uses: the template shows how the model writes its replies."""
    format = next(one for one in formats if all(marker in template for marker in one.template_markers))
    if format.reasoning is not None:
        return format
    reasoning = next((one for one in _REASONING if one.opening in template and one.closing in template), None)
    return replace(format, reasoning=reasoning)
