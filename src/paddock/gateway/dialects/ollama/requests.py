"""The bodies of `/api/chat` and `/api/generate`, and the prompts that they mean."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from paddock.errors import InvalidRequest, UnsupportedParameter
from paddock.gateway.dialects.ollama.durations import keep_alive
from paddock.gateway.dialects.ollama.options import Options
from paddock.gateway.dialects.ollama.templates import is_go_template
from paddock.gateway.generation.conversation import (
    ConversationFields,
    FunctionName,
    JSONObject,
    ToolUse,
    function_tool,
    tool_call,
)
from paddock.gateway.generation.fields import LARGEST, schema_constraint
from paddock.gateway.generation.media import media_part
from paddock.gateway.http.fields import Fields
from paddock.gateway.http.sizes import MOST_CALLS, MOST_MESSAGES, MOST_PARTS, MOST_TOKENS, MOST_TOOLS
from paddock.types import ChatPrompt, Constraint, InfillPrompt, TextPrompt

KeepAlive = Annotated[float, PlainValidator(keep_alive, json_schema_input_type=float | str)]
PLAIN_TEMPLATE: Final = "{{ .Prompt }}"
"""The Go template that is no template."""


def checked_template(template: str) -> str:
    """Raises `ValueError` if it is no Jinja template."""
    if template.strip() == PLAIN_TEMPLATE:
        return PLAIN_TEMPLATE
    if is_go_template(template):
        raise ValueError("Go templates are not supported: send a Jinja chat template, or none, to use the model's own")
    if template and "{" not in template:
        raise ValueError("it is not the text of a Jinja template")
    return template


def _none_is(value: Any) -> BeforeValidator:
    return BeforeValidator(lambda given: value if given is None else given)


def _format(value: Any) -> Any:
    if value in (None, "") or isinstance(value, dict) or value == "json":
        return value or None
    raise ValueError("it must be 'json' or a JSON schema")


Format = Annotated[dict[str, Any] | str | None, PlainValidator(_format, json_schema_input_type=dict[str, Any] | str)]


def _base64(value: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("an image must be the base64 of a file") from None
    return value


Images = Annotated[list[Annotated[str, AfterValidator(_base64)]] | None, Field(max_length=MOST_PARTS)]


def content_of(text: str, images: Sequence[str] | None, param: str) -> str | list[dict[str, Any]]:
    """The content of a message: its images come before its text, as in Ollama."""
    if not images:
        return text
    parts = [media_part("image", data, f"{param}[{index}]") for index, data in enumerate(images)]
    return [*parts, {"type": "text", "text": text}]


# ── messages and tools ───────────────────────────────────────────────────────────────────────────────────────────────


class EarlierFunction(Fields):
    name: str
    arguments: Annotated[JSONObject, _none_is({})] = Field(default_factory=dict)
    index: int | None = None


class EarlierCall(Fields):
    id: str | None = None
    type: str | None = None
    function: EarlierFunction


class Message(Fields):
    role: Annotated[
        Literal["system", "user", "assistant", "tool"],
        BeforeValidator(lambda role: role.lower() if isinstance(role, str) else role),
    ]
    content: Annotated[str, _none_is("")] = ""
    thinking: str | None = None
    images: Images = None
    tool_calls: list[EarlierCall] | None = Field(None, max_length=MOST_CALLS)
    tool_name: str | None = None
    tool_call_id: str | None = None


def rendered(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """As chat templates expect them. Ollama's calls may have no ids: each gets one, and a result belongs to the first
    call of its name that has none yet, or else to the first call without a result.
    """
    found: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []
    for place, message in enumerate(messages):
        param = f"messages[{place}].images"
        if message.images and message.role not in ("user", "tool"):
            raise UnsupportedParameter(f"{param}: a {message.role} message takes text only", param=param)
        content = content_of(message.content, message.images, param)
        one: dict[str, Any] = {"role": message.role, "content": content}
        if message.thinking and message.role == "assistant":
            one["reasoning_content"] = message.thinking
        if message.tool_calls and message.role == "assistant":
            calls = [
                (call.id or f"call{place:03}{number:02}", call.function)
                for number, call in enumerate(message.tool_calls)
            ]
            open_calls = [(id, function.name) for id, function in calls]
            one["tool_calls"] = [tool_call(id, function.name, function.arguments) for id, function in calls]
        if message.role == "tool":
            id, name = _answered(message, open_calls)
            one |= {"tool_call_id": id, **({"name": name} if name else {})}
        found.append(one)
    return found


def _answered(message: Message, open_calls: list[tuple[str, str]]) -> tuple[str, str]:
    """The id and the name of the call that a result belongs to. Removes it from the open calls."""
    if message.tool_call_id is not None:
        matches = [call for call in open_calls if call[0] == message.tool_call_id]
    else:
        matches = [call for call in open_calls if call[1] == message.tool_name] or open_calls
    if not matches:
        return message.tool_call_id or "", message.tool_name or ""
    id, name = matches[0]
    open_calls.remove((id, name))
    return id, message.tool_name or name


class Function(Fields):
    name: FunctionName
    description: str | None = None
    parameters: JSONObject | None = None


class ToolDefinition(Fields):
    type: Literal["function"] | None = None
    function: Function


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class OllamaFields(ConversationFields):
    """What both have. The fields of other dialects that generate apply too, such as `json_schema` or `cache_prompt`."""

    tool_name_path: ClassVar[str] = "tools[{}].function.name"
    without_effect = frozenset({"shift"})

    stream: Annotated[bool, _none_is(True)] = True
    options: Options | None = None
    format: Format = None
    keep_alive: KeepAlive | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    max_tokens: int | None = Field(None, ge=-1, le=LARGEST)
    """Paddock's own: the same as `options.num_predict`."""
    system: str | None = None
    template: Annotated[str, AfterValidator(checked_template)] | None = None
    """A Jinja template instead of the model's own."""

    @property
    def tool_use(self) -> ToolUse:
        return ToolUse()

    @property
    def n_probs(self) -> int:
        return self.top_logprobs or 0 if self.logprobs else -1

    @property
    def is_empty(self) -> bool:
        """Whether it only loads or unloads the model."""
        raise NotImplementedError

    def constraints(self) -> list[Constraint]:
        found = super().constraints()
        if self.format is None:
            return found
        schema = {"type": "object"} if isinstance(self.format, str) else self.format
        return [*found, schema_constraint(schema, "format")]

    def ignored(self) -> list[str]:
        unused = self.options.no_effect if self.options is not None else []
        return [*super().ignored(), *(f"options.{name}" for name in unused)]

    def chat_prompt(self, messages: list[dict[str, Any]]) -> ChatPrompt:
        levels: dict[Any, str] = {level: level for level in ("low", "medium", "high", "max")}
        options = self.template_options(levels.get(self.think))
        return self.tool_use.prompt(
            messages,
            ending="continue" if self.is_continued(messages[-1]) else "reply",
            thinking=self.thinking_of(None if self.think is None else self.think is not False, options, None),
            template_options=options,
            template="" if self.template in (None, PLAIN_TEMPLATE) else self.template,
            **self.reply_options(stream=self.stream),
        )

    @model_validator(mode="after")
    def _check_fields(self) -> OllamaFields:
        if self.receipt:
            raise UnsupportedParameter(
                "receipt is not a field of Ollama's API: use /v1/chat/completions", param="receipt"
            )
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs requires logprobs: true")
        return self


class ChatRequest(OllamaFields):
    messages: Annotated[list[Message], _none_is([])] = Field([], max_length=MOST_MESSAGES)
    tools: list[ToolDefinition] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | None = None
    """OpenAI's."""

    @property
    def tool_use(self) -> ToolUse:
        tools = [function_tool(tool.function, strict=False) for tool in self.tools or ()]
        return ToolUse(tools, self.tool_choice or "auto")

    @property
    def is_empty(self) -> bool:
        return not self.messages

    def prompt(self) -> ChatPrompt:
        messages = rendered(self.messages)
        if self.system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system})
        return self.chat_prompt(messages)


class GenerateRequest(OllamaFields):
    token_lists = frozenset({"context"})

    prompt: Annotated[str, _none_is("")] = ""
    suffix: str | None = None
    images: Images = None
    raw: Annotated[bool, _none_is(False)] = False
    context: list[Annotated[int, Field(ge=0, le=LARGEST)]] | None = Field(None, max_length=MOST_TOKENS, fail_fast=True)
    """The tokens of an earlier exchange, as its answer has them."""

    @property
    def is_empty(self) -> bool:
        return not (self.prompt or self.images or self.suffix)

    @property
    def is_raw(self) -> bool:
        return self.raw or self.template == PLAIN_TEMPLATE

    def text_prompt(self, earlier: Sequence[Message] = ()) -> TextPrompt | InfillPrompt | ChatPrompt:
        """The prompt, apart from `context`. `earlier` are the messages of a name made by `/api/create`."""
        content = content_of(self.prompt, self.images, "images")
        if self.images and (self.suffix or self.is_raw):
            raise UnsupportedParameter("images: a raw prompt and a suffix take text only", param="images")
        if self.suffix:
            return InfillPrompt(self.prompt, self.suffix)
        if self.is_raw:
            return TextPrompt(self.prompt)
        system = [{"role": "system", "content": self.system}] if self.system else []
        before = [] if self.context else rendered(earlier)
        return self.chat_prompt([*system, *before, {"role": "user", "content": content}])

    @model_validator(mode="after")
    def _check_raw(self) -> GenerateRequest:
        if self.raw and (self.template or self.system or self.context):
            raise InvalidRequest("raw mode does not support template, system, or context", param="raw")
        if self.suffix and self.context:
            raise InvalidRequest("suffix and context are mutually exclusive", param="suffix")
        return self
