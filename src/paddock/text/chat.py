"""Renders a conversation as a prompt, and tells how the reply to it starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import dropwhile
from typing import Any, Literal

from paddock.errors import InvalidRequest, TemplateRefused
from paddock.text.chat_template import BuiltinTemplate, ChatTemplate, RenderBuiltin, text_of
from paddock.text.reply.format import Format, ReplyFormat
from paddock.text.reply.formats import FORMATS, PLAIN, detect_format
from paddock.text.reply.history import (
    calls_to_content,
    calls_to_text,
    split_calls,
    system_to_turns,
    with_explanation,
)
from paddock.types import ChatPrompt, Tool

_PROBE = "probe_of_tools"
_PROBE_PARAMETERS = {"type": "object", "properties": {"word": {"type": "string", "description": "A word."}}}
_PROBE_TOOL = Tool(_PROBE, _PROBE_PARAMETERS, "A probe.")
_GREETING = [{"role": "user", "content": "hi"}]
_SHORT_ID = 9
"""Mistral's templates refuse ids of any other length."""


@dataclass(frozen=True, slots=True)
class Rendered:
    text: str
    reply_prefix: str = ""
    """The start of the reply, if the text ends with it."""
    reasoning: Literal["none", "possible", "started"] = "none"


class Chat:
    """A model's chat template, and the reply format that the template uses."""

    def __init__(
        self,
        source: str | None,
        *,
        bos: str = "",
        eos: str = "",
        formats: Sequence[Format] = FORMATS,
        builtin: RenderBuiltin | None = None,
    ) -> None:
        """`builtin` renders the messages instead of the source."""
        self._source = source or "" if builtin is None else ""
        self._is_builtin = builtin is not None
        self._template: ChatTemplate | BuiltinTemplate = (
            ChatTemplate(source, bos=bos, eos=eos) if builtin is None else BuiltinTemplate(builtin)
        )
        self._formats = formats

    @cached_property
    def format(self) -> Format:
        format = detect_format(self._source, self._formats)
        if self._supports_tools:
            return format
        return replace(PLAIN, **{field.name: getattr(format, field.name) for field in fields(ReplyFormat)})

    def render(self, prompt: ChatPrompt) -> Rendered:
        """Raises `InvalidRequest` if the template refuses the messages or does not support an option."""
        if prompt.tools and self._is_builtin:
            raise InvalidRequest(
                "tools require a Jinja chat template, and this model has a built-in one: remove tools, or start the "
                "server with --jinja and without the name of a built-in template",
                param="tools",
            )
        messages, last = prompt.messages, None
        if prompt.ending == "continue":
            *messages, last = messages
        options = _history_options(dict(prompt.template_options))
        if prompt.thinking is not None:
            options = _thinking_options(prompt.thinking) | options
        elif self._has_thinking_switch:
            options = {"enable_thinking": True} | options
        if prompt.thinking is False and options.get("reasoning_effort") == "none":
            del options["reasoning_effort"]  # templates do not support this value
        text = self._render(messages, prompt, options)
        if prompt.ending == "none":
            return Rendered(text, reasoning="possible" if self.format.reasoning else "none")
        reply = self._start_reply(text, prompt)
        return reply if last is None else self._continue(reply, last)

    # ── the start of the reply ───────────────────────────────────────────────────────────────────────────────────────

    def _start_reply(self, text: str, prompt: ChatPrompt) -> Rendered:
        format, reasoning = self.format, self.format.reasoning
        prefix = format.reply_prefix if text.endswith(format.reply_prefix) else ""
        if reasoning is None or (prefix and prefix == format.content_opening):
            return Rendered(text, prefix)
        started = text.rstrip().endswith(reasoning.opening)
        done = text.rstrip().endswith(reasoning.closing)
        if prompt.thinking is False and not done:
            if format.always_reasons:
                raise InvalidRequest("this model does not support replies without reasoning", param="reasoning_effort")
            if started:
                text += f"{reasoning.closing}\n\n"
            elif format.after_reasoning:
                text += reasoning.opening + reasoning.closing + format.after_reasoning
            elif not self._has_thinking_option:
                text += f"{reasoning.opening}\n\n{reasoning.closing}\n\n"
            done = True
        if prompt.thinking and done:
            text = text.rstrip().removesuffix(reasoning.closing).rstrip().removesuffix(reasoning.opening)
            text, started, done = f"{text}{reasoning.opening}\n", True, False
        if done:
            return Rendered(text, prefix)
        return Rendered(text, reasoning.opening, "started") if started else Rendered(text, prefix, "possible")

    @cached_property
    def _has_thinking_switch(self) -> bool:
        """Whether the template has the option by the name that llama-server knows: there it is on by default."""
        return "enable_thinking" in self._source and self.format.reasoning is not None and self._has_thinking_option

    @cached_property
    def _has_thinking_option(self) -> bool:
        """Whether the template has an option that turns reasoning off."""
        on, off = (self._probe(_GREETING, options=_thinking_options(on)) for on in (True, False))
        return bool(on and off) and on != off

    def _continue(self, reply: Rendered, last: dict[str, Any]) -> Rendered:
        """Continue the last message, which is the start of a reply."""
        format, text, started = self.format, reply.text, reply.reasoning == "started"
        content, reasoning = text_of(last.get("content")), last.get("reasoning_content") or ""
        if format.reasoning is not None and (reasoning or started):
            text += "" if started else format.reasoning.opening.removeprefix(reply.reply_prefix)
            text += reasoning
            if not content:
                return Rendered(text, format.reasoning.opening, "started")
            text += format.reasoning.closing + (format.after_reasoning or "\n\n")
        opening = "" if text.endswith(format.content_opening) else format.content_opening
        return Rendered(text + opening + content)

    # ── what the template supports ───────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _supports_tools(self) -> bool:
        return _PROBE in self._probe(_GREETING, tools=[_describe(_PROBE_TOOL)])

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether the template expects the arguments of earlier calls as objects rather than as JSON text."""
        text = self._probe_calls({"argument": "value"})
        return bool(text) and "{'argument'" not in text

    @cached_property
    def _writes_calls(self) -> Literal["all", "one", "none"]:
        """How many calls of a message the template writes without refusing it."""
        first, second = ({"argument": f"{_PROBE}_{number}"} for number in ("one", "two"))
        if not self._takes_objects:
            return "all"
        both = self._probe_calls(first, second)
        if first["argument"] in both and second["argument"] in both:
            return "all"
        return "one" if first["argument"] in self._probe_calls(first) else "none"

    @cached_property
    def _keeps_late_system(self) -> bool:
        """Whether the template writes a system message after the first turn where it is. Some refuse it, drop it, or
        move it to the front.
        """
        roles = ("user", "system", "assistant", "system", "user", "system")
        turns = [{"role": role, "content": f"{_PROBE}_{number}"} for number, role in enumerate(roles)]
        text = self._probe(turns)
        places = [text.find(turn["content"]) for turn in turns]
        return min(places) >= 0 and places == sorted(places)

    def _probe_calls(self, *arguments: dict[str, Any]) -> str:
        """Render a conversation with calls and their results."""
        ids = [f"probe123{number}" for number in range(len(arguments))]
        calls = [
            {"id": id, "type": "function", "function": {"name": _PROBE, "arguments": given}}
            for id, given in zip(ids, arguments, strict=True)
        ]
        results = [{"role": "tool", "content": "yes", "tool_call_id": id, "name": _PROBE} for id in ids]
        message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
        return self._probe([*_GREETING, message, *results], tools=[_describe(_PROBE_TOOL)])

    def _probe(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """The text that the template renders, or an empty string if it refuses the messages."""
        try:
            return self._template.render(messages, **options)
        except TemplateRefused:
            return ""

    # ── what the template gets ───────────────────────────────────────────────────────────────────────────────────────

    def _render(self, messages: Sequence[dict[str, Any]], prompt: ChatPrompt, options: dict[str, Any]) -> str:
        described = [_describe(tool) for tool in prompt.tools]
        if _has_late_system(messages) and not self._keeps_late_system:
            messages = system_to_turns(messages)
        render = partial(
            self._template.render, add_generation_prompt=prompt.ending != "none", options=options, date=prompt.date
        )
        if self._supports_tools:
            if self._writes_calls == "one":
                messages = list(split_calls(messages))
            return render([self._adapt(message) for message in messages], tools=described)
        texts = calls_to_text([{**message, "content": text_of(message.get("content"))} for message in messages])
        try:
            return render(with_explanation(texts, described, role="system"))
        except TemplateRefused:
            if not described:
                raise
            return render(with_explanation(texts, described, role="user"))  # it may refuse system messages

    def _adapt(self, message: dict[str, Any]) -> dict[str, Any]:
        message = dict(message)
        if self._writes_calls == "none":
            message["content"] = text_of(message.get("content"))
            message = calls_to_content(message, self.format)
        if message.get("tool_calls"):
            message["tool_calls"] = [self._adapt_call(call) for call in message["tool_calls"]]
        if "tool_call_id" in message:
            message["tool_call_id"] = self._adapt_id(message["tool_call_id"])
        if "reasoning_content" in message and "reasoning_content" not in self._source:
            message["reasoning"] = message["thought"] = message["reasoning_content"]
        if "reasoning_content" in message and "message.thinking" in self._source:
            # Templates with this field refuse content beside a call.
            reasoning = message.pop("reasoning_content")
            if message.get("tool_calls") and message.get("content"):
                reasoning = f"{reasoning}\n{text_of(message['content'])}"
                message["content"] = ""
            message["thinking"] = reasoning
        return message

    def _adapt_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        if not self._takes_objects:
            arguments = json.dumps(function["arguments"], ensure_ascii=False)
            function = {**function, "arguments": arguments}
        return {**call, "id": self._adapt_id(call["id"]), "function": function}

    def _adapt_id(self, id: str) -> str:
        if "length != 9" not in self._source or (len(id) == _SHORT_ID and id.isalnum()):
            return id
        return hashlib.sha256(id.encode()).hexdigest()[:_SHORT_ID]


def _has_late_system(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether there are system messages after the first turn."""
    late = dropwhile(lambda message: message["role"] == "system", messages)
    return any(message["role"] == "system" for message in late)


def _thinking_options(thinking: bool) -> dict[str, Any]:
    """The option under the names that templates use."""
    return {"enable_thinking": thinking, "thinking": thinking, "thinking_mode": "enabled" if thinking else "disabled"}


def _history_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options with `preserve_reasoning` under the names that templates use: whether they show the model the
    reasoning of earlier turns. As in llama-server they do so by default.
    """
    keep = options.pop("preserve_reasoning", True)
    dropping = dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keep)
    return {"preserve_thinking": bool(keep), **dropping, **options}


def _describe(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
