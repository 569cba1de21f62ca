"""Replies with reasoning and tool calls in every format, each with its parts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from paddock.types import Tool

WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["city"],
    },
)
CLOCK = Tool("clock", {"type": "object", "properties": {}})
TOOLS = [WEATHER, CLOCK]

ARGUMENTS = {"city": 'Zürich "🐎"\n{', "days": 3, "tags": ["a", {"b": None}]}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
TEXT = ARGUMENTS["city"]
TAGS = json.dumps(ARGUMENTS["tags"])


@dataclass(frozen=True)
class Sample:
    template: str
    """Enough of a chat template to detect the format."""
    text: str
    calls: list[tuple[str, Any]]
    content: str = ""
    reasoning: str = ""
    reply_prefix: str = ""


BOTH = [("get_weather", ARGUMENTS), ("clock", {})]
SAMPLES = {
    "hermes": Sample(
        "<tool_call> <think> </think>",
        "<think>\nHm.\n</think>\n\nLet me see.\n"
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
        BOTH,
        "Let me see.",
        "Hm.",
    ),
    "hermes with the name last and arguments as text": Sample(
        "<tool_call>",
        f'<tool_call>{{"arguments": {json.dumps(JSON)}, "id": 7, "name": "get_weather"}}</tool_call>',
        BOTH[:1],
    ),
    "qwen3-coder": Sample(
        "<tool_call> <function= <parameter=",
        f"Well.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n{TEXT}\n</parameter>\n<parameter=days>\n3\n"
        f"</parameter>\n<parameter=tags>\n{TAGS}\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        BOTH,
        "Well.",
    ),
    "seed": Sample(
        "<seed:tool_call> <seed:think> </seed:think>",
        f"<seed:think>So</seed:think><seed:tool_call>\n<function=get_weather>\n<parameter=city>{TEXT}</parameter>\n"
        f"<parameter=days>3</parameter>\n<parameter=tags>{TAGS}</parameter>\n</function>\n</seed:tool_call>",
        BOTH[:1],
        reasoning="So",
    ),
    "llama 3": Sample(
        'Respond in the format {"name": function name, "parameters": dictionary',
        f'{{"name": "get_weather", "parameters": {JSON}}}',
        BOTH[:1],
    ),
    "llama 3 with its tag, twice": Sample(
        'Respond in the format {"name": function name, "parameters": dictionary',
        f'<|python_tag|>{{"name": "get_weather", "parameters": {JSON}}}; {{"name": "clock", "parameters": {{}}}}',
        BOTH,
    ),
    "mistral, old": Sample(
        "[TOOL_CALLS]",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {JSON}, "id": "abcdefghi"}}, '
        '{"name": "clock", "arguments": {}}]',
        BOTH,
    ),
    "mistral, new": Sample(
        "[TOOL_CALLS] [ARGS] [THINK] [/THINK]",
        f"[THINK]Hm.[/THINK]Wait.[TOOL_CALLS]get_weather[ARGS]{JSON}[TOOL_CALLS]clock[CALL_ID]123456789[ARGS]{{}}",
        BOTH,
        "Wait.",
        "Hm.",
    ),
    "harmony": Sample(
        "<|channel|>analysis",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON}<|call|>",
        BOTH[:1],
        "Wait.",
        "Hm.",
        "<|start|>assistant",
    ),
    "harmony, as its template writes it": Sample(
        "<|channel|>analysis",
        f" to=functions.get_weather<|channel|>commentary json<|message|>{JSON}",
        BOTH[:1],
        reply_prefix="<|start|>assistant",
    ),
    "harmony without a call": Sample(
        "<|channel|>analysis",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        [],
        "Yes.",
        "Hm.",
        "<|start|>assistant",
    ),
    "deepseek r1": Sample(
        "<｜tool▁sep｜> ```json <think> </think>",
        "Hm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{JSON}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{{}}\n"
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
        reasoning="Hm.",
        reply_prefix="<think>",
    ),
    "deepseek v3.1": Sample(
        "<｜tool▁sep｜>",
        f"Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
        "Wait.",
    ),
    "deepseek v3.2": Sample(
        "DSML function_calls>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        f'<｜DSML｜parameter name="city" string="true">{TEXT}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        f'<｜DSML｜parameter name="tags" string="false">{TAGS}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        BOTH,
    ),
    "glm": Sample(
        "<arg_key> <think> </think>",
        f"<think></think>\nWait.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{TEXT}</arg_value>\n"
        f"<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>tags</arg_key><arg_value>{TAGS}</arg_value>\n"
        "</tool_call>\n<tool_call>clock\n</tool_call>",
        BOTH,
        "Wait.",
    ),
    "granite": Sample(
        "<|tool_call|>",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {JSON}}}, {{"name": "clock", "arguments": {{}}}}]',
        BOTH,
    ),
    "command-r7b": Sample(
        "<|START_ACTION|> <|START_THINKING|> <|END_THINKING|>",
        '<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        f'"parameters": {JSON}}},\n    {{"tool_call_id": "1", "tool_name": "clock", "parameters": {{}}}}\n]'
        "<|END_ACTION|>",
        BOTH,
        reasoning="Hm.",
    ),
    "command-r7b without a call": Sample(
        "<|START_ACTION|> <|START_RESPONSE|>", "<|START_RESPONSE|>Yes, no.<|END_RESPONSE|>", [], "Yes, no."
    ),
    "command-r plus": Sample(
        "Action: tool_name",
        'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n'
        f'        "parameters": {JSON}\n    }}\n]\n```',
        BOTH[:1],
    ),
    "kimi": Sample(
        "<|tool_call_argument_begin|>",
        "Wait.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{JSON}<|tool_call_end|><|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        BOTH,
        "Wait.",
    ),
    "minimax m1": Sample(
        "<tool_calls>",
        f'<tool_calls>\n{{"name": "get_weather", "arguments": {JSON}}}\n{{"name": "clock", "arguments": {{}}}}\n'
        "</tool_calls>",
        BOTH,
    ),
    "minimax m2": Sample(
        "<minimax:tool_call> <think> </think>",
        'Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n'
        f'<parameter name="city">{TEXT}</parameter>\n<parameter name="days">3</parameter>\n'
        f'<parameter name="tags">{TAGS}</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
        BOTH,
        reasoning="Hm.",
        reply_prefix="<think>",
    ),
    "functionary 3.1": Sample(
        "<function=", f"<function=get_weather>{JSON}</function><function=clock>{{}}</function>", BOTH
    ),
    "functionary 3.2": Sample(
        ">>>all", f"all\nWait.\n>>>get_weather\n{JSON}>>>clock\n{{}}", BOTH, "Wait.", reply_prefix=">>>"
    ),
    "gemma": Sample(
        "<|tool_call>call: <|channel>thought <channel|>",
        '<|channel>thought\nHm.\n<channel|><|tool_call>call:get_weather{city:<|"|>'
        f'{TEXT}<|"|>,days:3,tags:[<|"|>a<|"|>,{{<|"|>b<|"|>:null}}]}}<tool_call|><|tool_call>call:clock{{}}<tool_call|>',
        BOTH,
        reasoning="Hm.",
    ),
    "solar": Sample(
        "<|tool_call:begin|>",
        f"<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>ab12<|tool_call:name|>get_weather<|tool_call:args|>{JSON}<|tool_call:end|>"
        "<|tool_call:begin|>cd34<|tool_call:name|>clock<|tool_call:args|>{}<|tool_call:end|>",
        BOTH,
        reasoning="Hm.",
        reply_prefix="<|begin|>assistant",
    ),
    "nemotron": Sample(
        "<TOOLCALL>", f'<TOOLCALL>[{{"name": "get_weather", "arguments": {JSON}}}]</TOOLCALL>', BOTH[:1]
    ),
    "apertus": Sample(
        "<|tools_prefix|>", f'<|tools_prefix|>[{{"get_weather": {JSON}}}, {{"clock": {{}}}}]<|tools_suffix|>', BOTH
    ),
    "firefunction": Sample("functools[", f' functools[{{"name": "get_weather", "arguments": {JSON}}}]', BOTH[:1]),
    "plain": Sample(
        "", f'{{"name": "get_weather", "arguments": {JSON}}}\n{{"name": "clock", "arguments": {{}}}}', BOTH
    ),
    "plain, as OpenAI writes it": Sample(
        "", f'{{"type": "function", "function": {{"name": "get_weather", "arguments": {JSON}}}}}', BOTH[:1]
    ),
    "minicpm": Sample(
        '<function name=" <param name="',
        f'<function name="get_weather"><param name="city"><![CDATA[{TEXT}]]></param><param name="days">3</param>'
        '<param name="tags">[\'a\', {"b": None}]</param></function>\n<function name="clock"></function>',
        BOTH,
    ),
    "minimax m3": Sample(
        "]<]minimax[>[ <mm:think> </mm:think>",
        '</mm:think>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">'
        f"]<]minimax[>[<city>{TEXT}]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[<tags>"
        "]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>]<]minimax[>[<b>null]<]minimax[>[</b>]<]minimax[>["
        "</item>]<]minimax[>[</tags>]<]minimax[>[</invoke>\n"
        ']<]minimax[>[<invoke name="clock">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
        BOTH,
    ),
    "lfm2": Sample(
        "List of tools: [ <think> </think>",
        r"""<think>Hm.</think>Wait.<|tool_call_start|>[get_weather(city='Zürich \"🐎"\n{', days=3, """
        "tags=['a', {'b': None}]), clock()]<|tool_call_end|>",
        BOTH,
        "Wait.",
        "Hm.",
    ),
    "kimi k3": Sample(
        "<|open|> <|end_of_msg|>",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>Wait.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>'
        f'{TEXT}<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        f'<|open|>argument key="tags" type="array"<|sep|>{TAGS}<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="clock" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>',
        BOTH,
        "Wait.",
        "Hm.",
        "<|open|>think<|sep|>",
    ),
    "hy3": Sample(
        "<tool_sep{}> :opensource",
        "Hm.</think:opensource>Wait.<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        f"<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>{TEXT}</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n"
        f"<arg_key:opensource>tags</arg_key:opensource>\n<arg_value:opensource>{TAGS}</arg_value:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>clock<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        BOTH,
        "Wait.",
        "Hm.",
        "<think:opensource>",
    ),
    "muse": Sample(
        "<atem:function_calls>",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
        f'<atem:invoke name="get_weather">\n<atem:parameter name="city">{TEXT}</atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter>'
        f'\n<atem:parameter name="tags">{TAGS}</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>'
        '<|start|>assistant to=clock<|message|><atem:function_calls>\n<atem:invoke name="clock">\n</atem:invoke>\n'
        "</atem:function_calls>",
        BOTH,
        reasoning="Hm.",
        reply_prefix="<|start|>assistant",
    ),
    "muse without a call": Sample(
        "<atem:function_calls>", " to=user<|message|>Yes.", [], "Yes.", reply_prefix="<|start|>assistant"
    ),
    "gigachat 3": Sample(
        "'role': 'function call'",
        "Wait.<|message_sep|>\n\nfunction call<|role_sep|>\n"
        f'{{"name": "get_weather", "arguments": {JSON}}}<|message_sep|>',
        BOTH[:1],
        "Wait.",
    ),
    "apriel": Sample(
        "<tool_calls>[ Here are my reasoning steps: [BEGIN FINAL RESPONSE]",
        f'\nHm.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{{"name": "get_weather", "arguments": {JSON}}}]</tool_calls>',
        BOTH[:1],
        reasoning="Hm.",
        reply_prefix="Here are my reasoning steps:",
    ),
    "content only": Sample(
        "<tool_call> <think> </think>",
        " Less < more,\n\n and <tool is not it. \n",
        [],
        " Less < more,\n\n and <tool is not it. \n",
    ),
}
