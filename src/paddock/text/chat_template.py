"""Chat messages → prompt text, by the template that the model's author shipped, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paddock.errors import TemplateRefused

# What llama.cpp assumes for a model that ships none.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ChatTemplate:
    """A compiled template. Rendering is pure but for the date some templates ask for, which is passed in as `now`.

    A template that does not compile is no reason not to load the model: it is reported when messages are rendered.
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
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self._now = now
        self._special = {"bos_token": bos, "eos_token": eos}
        self._template: jinja2.Template | None = None
        self._broken: str | None = None
        try:
            self._template = environment.from_string(source or CHATML)
        except jinja2.TemplateSyntaxError as error:
            self._broken = f"line {error.lineno}: {error.message}"

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. `options` are further variables that the template may know."""
        if self._template is None:
            raise TemplateRefused(f"the model's chat template is broken: {self._broken}", param="messages")
        variables = {
            # firefunction prints these two without asking whether they are there
            "functions": _tojson(tools) if tools else "",
            "datetime": self._now().strftime("%b %d %Y"),
            **({"tools": tools, "xml_tools": tools} if tools else {}),
            **self._special,
            **(options or {}),
            "messages": [_flattened(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
            raise TemplateRefused(
                f"the model's chat template refused these messages: {error}", param="messages"
            ) from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """Nothing outside can be reached or changed. Templates keep lists of their own, which may grow and shrink."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


def _flattened(message: dict[str, Any]) -> dict[str, Any]:
    """A copy in which text parts are one string, since most templates know no other, and no content an empty one."""
    content = message.get("content")
    if content is None:
        return {**message, "content": ""}
    if isinstance(content, list):
        return {**message, "content": "\n".join(part["text"] for part in content)}
    return dict(message)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """As Hugging Face renders it: no HTML escaping (jinja2's own filter has it), letters left as they are."""
    # What jinja2's `map` and `select` give is no list yet.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, default=list, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_transparent"), [], [], body).set_lineno(line)

    def _transparent(self, caller: Callable[[], str]) -> str:
        return caller()
