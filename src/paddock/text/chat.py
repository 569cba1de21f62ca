"""A conversation → the prompt's text, and what is known beforehand of the reply to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from paddock.errors import InvalidRequest, TemplateRefused
from paddock.text.chat_template import ChatTemplate
from paddock.text.reply import plain
from paddock.text.reply.formats import PLAIN_CALLS, recognise
from paddock.text.reply.history import one_call_each, with_calls_in_content
from paddock.text.reply.shapes import Format
from paddock.types import ChatPrompt, Tool

_PROBE = "probe_of_tools"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "A word."}}},
    },
}
_GREETING = [{"role": "user", "content": "hi"}]
_SHORT_ID = 9
"""Mistral's templates refuse ids of any other length."""


@dataclass(frozen=True, slots=True)
class Rendered:
    text: str
    lead: str = ""
    """What its end says of the reply already: that it begins with a thought, for one."""
    thoughts: Literal["none", "possible", "begun"] = "none"


class Chat:
    """One model's way of writing conversations: its template, and the format of replies that the template speaks."""

    def __init__(
        self, source: str | None, *, bos: str = "", eos: str = "", now: Callable[[], datetime] = datetime.now
    ) -> None:
        self._source = source or ""
        self._template = ChatTemplate(source, bos=bos, eos=eos, now=now)

    @cached_property
    def format(self) -> Format:
        format = recognise(self._source)
        return format if self._knows_tools else replace(format, calls=PLAIN_CALLS)

    def render(self, prompt: ChatPrompt) -> Rendered:
        """Raises `InvalidRequest` where the template refuses the messages or something else cannot be had of it."""
        messages, last = prompt.messages, None
        if prompt.ending == "continue":
            *messages, last = messages
        options = dict(prompt.template_options)
        if prompt.thinking is not None:
            options = _switched(prompt.thinking) | options
        if prompt.thinking is False and options.get("reasoning_effort") == "none":
            del options["reasoning_effort"]  # a word that is ours, not the templates'
        text = self._render(messages, prompt.tools, prompt.ending != "none", options)
        if prompt.ending == "none":
            return Rendered(text, thoughts="possible" if self.format.reasoning else "none")
        reply = self._begin_reply(text, prompt)
        return reply if last is None else self._continue(reply, last)

    # ── how the reply begins ─────────────────────────────────────────────────────────────────────────────────────────

    def _begin_reply(self, text: str, prompt: ChatPrompt) -> Rendered:
        format, reasoning = self.format, self.format.reasoning
        lead = format.lead if format.lead and text.endswith(format.lead) else ""
        if reasoning is None or (lead and lead == format.content_opening):
            return Rendered(text, lead)
        begun = text.rstrip().endswith(reasoning.opening)
        done = text.rstrip().endswith(reasoning.closing)
        if prompt.thinking is False and not done:
            if format.must_think:
                raise InvalidRequest("this model cannot be kept from thinking", param="reasoning_effort")
            if begun:
                text += f"{reasoning.closing}\n\n"
            elif format.turn:
                text += reasoning.opening + reasoning.closing + format.turn
            elif not self._has_switch:
                text += f"{reasoning.opening}\n\n{reasoning.closing}\n\n"
            done = True
        if prompt.thinking and done:
            text = text.rstrip().removesuffix(reasoning.closing).rstrip().removesuffix(reasoning.opening)
            text, begun, done = f"{text}{reasoning.opening}\n", True, False
        if done:
            return Rendered(text, lead)
        return Rendered(text, reasoning.opening, "begun") if begun else Rendered(text, lead, "possible")

    @cached_property
    def _has_switch(self) -> bool:
        """Whether the template itself can turn thinking off."""
        try:
            on, off = (self._template.render(_GREETING, options=_switched(thinking)) for thinking in (True, False))
        except TemplateRefused:
            return False
        return on != off

    def _continue(self, reply: Rendered, last: dict[str, Any]) -> Rendered:
        """Go on with a message that has been begun."""
        format, text = self.format, reply.text
        content, thoughts = _text(last.get("content")), last.get("reasoning_content") or ""
        if format.reasoning is not None and (thoughts or reply.thoughts == "begun"):
            text += (
                thoughts if reply.thoughts == "begun" else format.reasoning.opening.removeprefix(reply.lead) + thoughts
            )
            if not content:
                return Rendered(text, format.reasoning.opening, "begun")
            text += format.reasoning.closing + (format.turn or "\n\n")
        opening = "" if text.endswith(format.content_opening) else format.content_opening
        return Rendered(text + opening + content)

    # ── what the template is given ───────────────────────────────────────────────────────────────────────────────────

    def _render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[Tool],
        generation_prompt: bool,
        options: dict[str, Any],
    ) -> str:
        described = [_described(tool) for tool in tools]
        if self._knows_tools:
            if self._writes_calls == "one":
                messages = list(one_call_each(messages))
            given = [self._adapted(message) for message in messages]
            return self._template.render(
                given, tools=described, add_generation_prompt=generation_prompt, options=options
            )
        told = plain.in_words([{**message, "content": _text(message.get("content"))} for message in messages])
        try:
            given = plain.with_explanation(told, described, role="system")
            return self._template.render(given, add_generation_prompt=generation_prompt, options=options)
        except TemplateRefused:
            if not described:
                raise
            given = plain.with_explanation(told, described, role="user")  # some know no system messages
            return self._template.render(given, add_generation_prompt=generation_prompt, options=options)

    @cached_property
    def _knows_tools(self) -> bool:
        try:
            return _PROBE in self._template.render(_GREETING, tools=[_PROBE_TOOL])
        except TemplateRefused:
            return False

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether arguments of earlier calls are given to the template as objects, rather than as the JSON of them."""
        text = self._with_calls({"argument": "value"})
        return text is not None and "{'argument'" not in text

    @cached_property
    def _writes_calls(self) -> Literal["all", "one", "none"]:
        """Which of a message's calls the template writes, or else refuses."""
        first, second = ({"argument": f"{_PROBE}_{number}"} for number in ("one", "two"))
        if not self._takes_objects:
            return "all"
        together = self._with_calls(first, second)
        if together is not None and all(arguments["argument"] in together for arguments in (first, second)):
            return "all"
        alone = self._with_calls(first)
        return "one" if alone is not None and first["argument"] in alone else "none"

    def _with_calls(self, *arguments: dict[str, Any]) -> str | None:
        """A conversation with calls in it and their results. None where the template refuses it."""
        ids = [f"probe123{number}" for number in range(len(arguments))]
        calls = [
            {"id": id, "type": "function", "function": {"name": _PROBE, "arguments": given}}
            for id, given in zip(ids, arguments, strict=True)
        ]
        results = [{"role": "tool", "content": "yes", "tool_call_id": id, "name": _PROBE} for id in ids]
        asked: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
        try:
            return self._template.render([*_GREETING, asked, *results], tools=[_PROBE_TOOL])
        except TemplateRefused:
            return None

    def _adapted(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message as this template wants it."""
        message = dict(message)
        if self._writes_calls == "none":
            message["content"] = _text(message.get("content"))
            message = with_calls_in_content(message, self.format.calls)
        if message.get("tool_calls"):
            message["tool_calls"] = [self._adapted_call(call) for call in message["tool_calls"]]
        if "tool_call_id" in message:
            message["tool_call_id"] = self._adapted_id(message["tool_call_id"])
        if "reasoning_content" in message and "reasoning_content" not in self._source:
            message["reasoning"] = message["thought"] = message["reasoning_content"]
        if "reasoning_content" in message and "message.thinking" in self._source:
            # One that has thoughts in this field takes no content beside a call.
            thoughts = message.pop("reasoning_content")
            if message.get("tool_calls") and message.get("content"):
                thoughts = f"{thoughts}\n{_text(message['content'])}"
                message["content"] = ""
            message["thinking"] = thoughts
        return message

    def _adapted_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        if not self._takes_objects:
            arguments = json.dumps(function["arguments"], ensure_ascii=False)
            function = {**function, "arguments": arguments}
        return {**call, "id": self._adapted_id(call["id"]), "function": function}

    def _adapted_id(self, id: str) -> str:
        if "length != 9" not in self._source or (len(id) == _SHORT_ID and id.isalnum()):
            return id
        return hashlib.sha256(id.encode()).hexdigest()[:_SHORT_ID]


def _switched(thinking: bool) -> dict[str, Any]:
    """What templates call the switch."""
    return {"enable_thinking": thinking, "thinking": thinking, "thinking_mode": "enabled" if thinking else "disabled"}


def _described(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _text(content: Any) -> str:
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""
