"""What the dialects with conversations share: tools, thinking, and messages as chat templates expect them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag, model_validator

from paddock.errors import InvalidRequest, PaddockError
from paddock.gateway.generation.fields import GenerationFields
from paddock.gateway.generation.media import take_media
from paddock.gateway.generation.reply_fields import ReplyFields
from paddock.gateway.http.sizes import MOST_PARTS, is_too_deep
from paddock.types import ChatPrompt, Constraint, Tool

# ── types of fields ──────────────────────────────────────────────────────────────────────────────────────────────────


def _encodable(value: Any) -> Any:
    """JSON that can be sent to a worker."""
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, ValueError, RecursionError):
        raise ValueError("it contains a number that is too large, or text that is not valid Unicode") from None
    return value


JSONObject = Annotated[dict[str, Any], AfterValidator(_encodable)]
FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
Choice = Literal["none", "auto", "required", "function"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The parameters of a function that declares none."""

# Unions are discriminated, so that an error is about the branch that the client meant. Tags become part of pydantic's
# path; they are not identifiers, so that they are left out of the `param` of errors.
TEXT_OR_LIST = Discriminator(lambda value: "(list)" if isinstance(value, list) else "(text)")
_Item = TypeVar("_Item")
TextOr = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[_Item], Tag("(list)"), Field(max_length=MOST_PARTS)], TEXT_OR_LIST
]
"""A text, or a list of parts."""
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(word)")] | Annotated[_Item, Tag("(function)")],
    Discriminator(lambda value: "(word)" if isinstance(value, str) else "(function)"),
]
"""OpenAI's `tool_choice`: a word, or an object that names a function."""


def by_field(name: str, *known: str, default: str | None = None) -> Discriminator:
    """Chooses the branch that is tagged with the value of a field in parentheses."""

    def tag(value: Any) -> str | None:
        found = (value.get(name) if isinstance(value, dict) else getattr(value, name, None)) or default
        return f"({found})" if found in known else None

    message = f"its {name} must be {', '.join(known[:-1])} or {known[-1]}"
    return Discriminator(tag, custom_error_type=f"unknown_{name}", custom_error_message=message)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def call_arguments(text: str) -> dict[str, Any]:
    """The arguments of an earlier tool call. Raises `ValueError`."""
    try:
        found = _encodable(msgspec.json.decode(text or "{}"))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or is_too_deep(found):
        raise ValueError("arguments must be the JSON text of an object")
    return found


def joined(content: str | list[Any] | None) -> str:
    """The text of a message: a text, or the texts of its parts, one per line."""
    return "\n".join(part.text for part in content) if isinstance(content, list) else content or ""


def tool_result(call_id: str, content: str | list[dict[str, Any]]) -> dict[str, Any]:
    """The result of an earlier tool call, as chat templates expect it."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def function_tool(function: Any, *, strict: bool) -> Tool:
    """The tool that an object with OpenAI's function fields declares."""
    return Tool(function.name, function.parameters or _NO_PARAMETERS, function.description or "", strict=strict)


def tool_call(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """An earlier tool call, as chat templates expect it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def is_unfinished(message: Mapping[str, Any]) -> bool:
    """Whether a last message is one of the assistant's that the model can continue."""
    return (
        message["role"] == "assistant"
        and not message.get("tool_calls")
        and bool(message.get("content") or message.get("reasoning_content"))
    )


# ── tools and thinking ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and which of them may or must be called."""

    tools: Sequence[Tool] = ()
    choice: Choice = "auto"
    function: str = ""
    """The function that must be called, if `choice` is `function`."""
    parallel: bool = True

    def check(self, constraints: Sequence[Constraint], *, name_path: str) -> None:
        """Refuse contradictions. `name_path` is the path of the name of tool number `{}`."""
        names = [tool.name for tool in self.tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidRequest(f"there are two functions named {name}", param=name_path.format(index))
        if self.choice == "required" and not names:
            raise InvalidRequest("tool_choice requires a call, but tools is empty", param="tool_choice")
        if self.choice == "function" and self.function not in names:
            raise InvalidRequest(f"tool_choice names {self.function}, which is not in tools", param="tool_choice")
        # A schema constrains the content, and a forced call has none: OpenAI's clients send both. A grammar or a
        # regular expression constrains the whole reply.
        whole = [constraint for constraint in constraints if constraint.kind != "json_schema"]
        if self.choice in ("required", "function") and whole:
            raise InvalidRequest(
                f"{whole[0].param} and a tool_choice that requires a call are mutually exclusive", param="tool_choice"
            )

    def prompt(self, messages: list[dict[str, Any]], **more: Any) -> ChatPrompt:
        return ChatPrompt(
            messages,
            tools=() if self.choice == "none" else tuple(self.tools),
            must_call=self.choice in ("required", "function"),
            function=self.function if self.choice == "function" else "",
            parallel_calls=self.parallel,
            media=take_media(messages),
            **more,
        )


class ConversationFields(GenerationFields, ReplyFields):
    """The fields of a conversation."""

    tool_name_path: ClassVar[str] = "tools[{}].name"
    chat_template_kwargs: JSONObject | None = None

    @property
    def tool_use(self) -> ToolUse:
        raise NotImplementedError

    def template_options(self, effort: str | None) -> dict[str, Any]:
        """`chat_template_kwargs`, with the fields that are options of templates unless they have them."""
        options = dict(self.chat_template_kwargs or {})
        if effort is not None:
            options.setdefault("reasoning_effort", effort)
        if self.preserve_reasoning is not None:
            options.setdefault("preserve_reasoning", self.preserve_reasoning)
        return options

    def thinking_of(self, own: bool | None, options: Mapping[str, Any], effort: Effort | None) -> bool | None:
        """Whether the request enables thinking: by its own field, the template's options or the effort. None leaves it
        to the model.
        """
        if self.thinking_budget_tokens == 0:
            return False
        if own is not None:
            return own
        for name in ("enable_thinking", "thinking"):
            if isinstance(options.get(name), bool):
                return bool(options[name])
        return None if effort is None else effort != "none"

    def is_continued(self, last: Mapping[str, Any]) -> bool:
        """Whether the model continues the last message."""
        return self.prefill_assistant is not False and is_unfinished(last)

    @model_validator(mode="after")
    def _check_tools(self) -> ConversationFields:
        self.tool_use.check(self.constraints(), name_path=self.tool_name_path)
        return self


@contextmanager
def renamed_params(names: Mapping[str, str]) -> Iterator[None]:
    """Replace the field names in errors, which are those of chat completions, by the dialect's own names."""
    try:
        yield
    except PaddockError as error:
        if error.param is not None:
            error.param = names.get(error.param, error.param)
        raise
