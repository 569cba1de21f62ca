"""The bodies of messages requests, and how they become the messages of a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, Tag, model_validator

from paddock.errors import InvalidRequest
from paddock.gateway.generation.conversation import (
    Choice,
    ConversationFields,
    FunctionName,
    JSONObject,
    TextOr,
    ToolUse,
    by_field,
    joined,
    tool_call,
    tool_result,
)
from paddock.gateway.generation.fields import LARGEST, StopStrings, schema_constraint
from paddock.gateway.generation.media import content_of, media_part, url_part
from paddock.gateway.http.fields import Fields, Unsupported
from paddock.gateway.http.sizes import MOST_MESSAGES, MOST_TOOLS
from paddock.types import ChatPrompt, Constraint, Tool

# ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Block(Fields):
    cache_control: dict[str, Any] | None = None
    """No effect: every prefix is cached while there is room."""


class TextBlock(_Block):
    type: Literal["text"]
    text: str
    citations: list[Any] | None = None
    """From an earlier answer. Not part of the prompt."""


class ImageSource(Fields):
    type: Literal["base64", "url"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"] | None = None
    """No effect: the data says it itself."""
    data: str | None = None
    url: str | None = None

    @model_validator(mode="after")
    def _check_data(self) -> ImageSource:
        if (self.data if self.type == "base64" else self.url) is None:
            raise ValueError(f"{'data' if self.type == 'base64' else 'url'} is required with type {self.type}")
        return self


class ImageBlock(_Block):
    type: Literal["image"]
    source: ImageSource

    def rendered(self, at: str) -> dict[str, Any]:
        source = self.source
        if source.data is not None:
            return media_part("image", source.data, f"{at}.source.data")
        param = f"{at}.source.url"
        return url_part("image", source.url or "", param)


class ThinkingBlock(_Block):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block):
    """Encrypted by another server, so it is left out of the prompt."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(_Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JSONObject


_Text = Annotated[TextBlock, Tag("(text)")]
_Image = Annotated[ImageBlock, Tag("(image)")]
_ResultBlock = Annotated[_Text | _Image, by_field("type", "text", "image")]


class ToolResultBlock(_Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: TextOr[_ResultBlock] | None = None
    is_error: bool | None = None

    def rendered(self, at: str) -> dict[str, Any]:
        content = content_of(self.content, f"{at}.content") if isinstance(self.content, list) else self.content or ""
        if self.is_error:
            is_text = isinstance(content, str)
            content = f"Error: {content}" if is_text else [{"type": "text", "text": "Error: "}, *content]
        return tool_result(self.tool_use_id, content)


_UserBlock = Annotated[
    _Text | _Image | Annotated[ToolResultBlock, Tag("(tool_result)")], by_field("type", "text", "image", "tool_result")
]
_AssistantBlock = Annotated[
    _Text
    | Annotated[ThinkingBlock, Tag("(thinking)")]
    | Annotated[RedactedThinkingBlock, Tag("(redacted_thinking)")]
    | Annotated[ToolUseBlock, Tag("(tool_use)")],
    by_field("type", "text", "thinking", "redacted_thinking", "tool_use"),
]


class UserMessage(Fields):
    role: Literal["user"]
    content: TextOr[_UserBlock]

    def rendered(self, at: str) -> list[dict[str, Any]]:
        """Tool results become messages of their own, before the user's text. `at` is the path in the request."""
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        results: list[dict[str, Any]] = []
        parts: list[dict[str, Any]] = []
        for index, block in enumerate(self.content):
            path = f"{at}.content[{index}]"
            match block:
                case ToolResultBlock():
                    results.append(block.rendered(path))
                case ImageBlock():
                    parts.append(block.rendered(path))
                case TextBlock():
                    parts.append({"type": "text", "text": block.text})
        has_images = any(part["type"] != "text" for part in parts)
        content = parts if has_images else "\n".join(part["text"] for part in parts)
        return [*results, {"role": "user", "content": content}] if parts or not results else results


class AssistantMessage(Fields):
    role: Literal["assistant"]
    content: TextOr[_AssistantBlock]

    def rendered(self, at: str) -> list[dict[str, Any]]:
        if isinstance(self.content, str):
            return [{"role": "assistant", "content": self.content}]
        texts = [block for block in self.content if isinstance(block, TextBlock)]
        message: dict[str, Any] = {"role": "assistant", "content": joined(texts)}
        if thoughts := [block.thinking for block in self.content if isinstance(block, ThinkingBlock)]:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls := [block for block in self.content if isinstance(block, ToolUseBlock)]:
            message["tool_calls"] = [tool_call(call.id, call.name, call.input) for call in calls]
        return [message]


class SystemMessage(Fields):
    """Instructions within the conversation. Claude Code sends them in addition to `system`."""

    role: Literal["system"]
    content: TextOr[TextBlock]

    def rendered(self, at: str) -> list[dict[str, Any]]:
        return [{"role": "system", "content": joined(self.content)}]


_Message = Annotated[
    Annotated[UserMessage, Tag("(user)")]
    | Annotated[AssistantMessage, Tag("(assistant)")]
    | Annotated[SystemMessage, Tag("(system)")],
    by_field("role", "user", "assistant", "system"),
]

# ── other fields ──────────────────────────────────────────────────────────────────────────────────────────────────────


class ToolDefinition(_Block):
    type: Literal["custom"] | None = None
    name: FunctionName
    input_schema: JSONObject
    description: str | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    """No effect: arguments are always streamed."""

    def tool(self) -> Tool:
        return Tool(self.name, self.input_schema, self.description or "", strict=bool(self.strict))


_CHOICES: Final[Mapping[str, Choice]] = {"auto": "auto", "none": "none", "any": "required", "tool": "function"}


class ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name is required with type tool, and allowed only with it")
        return self


class Thinking(Fields):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=LARGEST)
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _check_budget(self) -> Thinking:
        if self.budget_tokens is not None and self.type != "enabled":
            raise ValueError("budget_tokens is allowed with type enabled only")
        return self


class OutputFormat(Fields):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class PromptFields(ConversationFields):
    """The fields that make up the prompt."""

    # These need a server that runs tools itself, or that edits the conversation.
    unsupported: ClassVar[Unsupported] = {
        "container": (),
        # Coding agents send this; it clears nothing.
        "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }
    without_effect = frozenset(
        {
            "cache_control",
            "diagnostics",
            "inference_geo",
            "metadata",
            "service_tier",
            "user_profile_id",
            "workspace_id",
        }
    )

    messages: list[_Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    system: TextOr[TextBlock] | None = None
    tools: list[ToolDefinition] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    @model_validator(mode="after")
    def _check_first(self) -> PromptFields:
        if self.messages[0].role == "system":
            raise InvalidRequest(
                "the first message must be of the user or the assistant: instructions before it belong in system",
                param="messages[0]",
            )
        return self

    @property
    def tool_use(self) -> ToolUse:
        tools = [tool.tool() for tool in self.tools or ()]
        choice = self.tool_choice or ToolChoice(type="auto")
        return ToolUse(tools, _CHOICES[choice.type], choice.name or "", not choice.disable_parallel_tool_use)

    def constraints(self) -> list[Constraint]:
        config = self.output_config.format if self.output_config is not None else None
        formats = {"output_config.format": config, "output_format": self.output_format}
        found = [schema_constraint(form.schema_, param) for param, form in formats.items() if form is not None]
        return [*super().constraints(), *found]

    def prompt(self) -> ChatPrompt:
        turns = enumerate(self.messages)
        messages = [message for index, turn in turns for message in turn.rendered(f"messages[{index}]")]
        if system := joined(self.system):
            messages.insert(0, {"role": "system", "content": system})
        thinking = self.thinking or Thinking(type="adaptive")
        options = self.template_options(self.output_config.effort if self.output_config is not None else None)
        return self.tool_use.prompt(
            messages,
            ending="continue" if self.is_continued(messages[-1]) else "reply",
            thinking=self.thinking_of({"enabled": True, "disabled": False}.get(thinking.type), options, None),
            template_options=options,
            **self.reply_options(stream=self.stream, budget=thinking.budget_tokens),
        )


class MessagesRequest(PromptFields):
    lenient_defaults: ClassVar[Mapping[str, Any]] = {"max_tokens": 4096}

    max_tokens: int = Field(ge=1, le=LARGEST)
    stop_sequences: StopStrings | None = None

    @property
    def stop_strings(self) -> list[str]:
        return self.stop_sequences or self.stop or []

    @model_validator(mode="after")
    def _check_stop(self) -> MessagesRequest:
        if self.stop and self.stop_sequences:
            raise InvalidRequest("stop and stop_sequences are mutually exclusive", param="stop")
        return self


class CountTokensRequest(PromptFields):
    """It may have the other fields of a messages request as well."""

    max_tokens: int | None = Field(None, ge=1, le=LARGEST)
    stop_sequences: StopStrings | None = None
