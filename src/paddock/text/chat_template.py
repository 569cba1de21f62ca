"""Renders chat messages with the model's own Jinja template, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paddock.errors import TemplateRefused
from paddock.types import printed_dates

# llama.cpp's default for a model without a template.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class RenderBuiltin(Protocol):
    """The text of messages, given as roles and texts; None if the engine does not know the template."""

    def __call__(self, messages: Sequence[tuple[str, str]], *, starts_reply: bool) -> str | None: ...


class ChatTemplate:
    """A compiled template. `now` is for templates that print the date.

    A model with an invalid template can still be loaded. `render` raises the error.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos: str = "",
        eos: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        self._now = now
        self._special = {"bos_token": bos, "eos_token": eos}
        self._template: jinja2.Template | None = None
        self._error = ""
        try:
            self._template = environment.from_string(source or CHATML)
        except jinja2.TemplateSyntaxError as error:
            self._error = f"line {error.lineno}: {error.message}"

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
        date: str = "",
    ) -> str:
        """The prompt. `options` are further variables of the template. `date`: as 2026-11-19; empty: today."""
        if self._template is None:
            raise TemplateRefused(f"the model's chat template is invalid: {self._error}", param="messages")
        now = datetime.fromisoformat(date) if date else self._now()
        variables = {
            # Firefunction prints it without a check.
            "functions": _tojson(tools) if tools else "",
            **printed_dates(now),
            "strftime_now": now.strftime,
            **({"tools": tools, "xml_tools": tools} if tools else {}),
            **self._special,
            **(options or {}),
            "messages": [{**message, "content": text_of(message.get("content"))} for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
            raise TemplateRefused(
                f"the model's chat template refused these messages: {error}", param="messages"
            ) from error


class BuiltinTemplate:
    """A template that the engine renders by its own code, without tools and options."""

    def __init__(self, render: RenderBuiltin) -> None:
        self._render = render

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
        date: str = "",
    ) -> str:
        texts = [(message["role"], text_of(message.get("content"))) for message in messages]
        if any("\0" in text for _, text in texts):
            raise TemplateRefused("a built-in chat template does not support NUL characters", param="messages")
        rendered = self._render(texts, starts_reply=add_generation_prompt)
        if rendered is None:
            raise TemplateRefused(
                "llama.cpp has no code for the model's chat template: set jinja to true", param="messages"
            )
        return rendered


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates cannot reach or change anything outside, but may append to lists and pop from them."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


def text_of(content: Any) -> str:
    """Content as one string, because most templates support no parts. Texts have a line each. As in llama-server there
    is no line break beside an image.
    """
    if not isinstance(content, list):
        return content or ""
    text, follows_text = "", False
    for part in content:
        is_text = part.get("type") != "media"
        text += ("\n" if is_text and follows_text else "") + part["text"]
        follows_text = is_text
    return text


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """As Hugging Face renders it: without the HTML escaping of Jinja's filter, and without ASCII escapes."""
    # Jinja's `map` and `select` return generators.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, default=list, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _GenerationTag(Extension):
    """`{% generation %}` marks text for training. It has no effect here."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_transparent"), [], [], body).set_lineno(line)

    def _transparent(self, caller: Callable[[], str]) -> str:
        return caller()
