"""What may be asked: messages of blocks, as a chat template will be told them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from paddock.errors import InvalidRequest
from paddock.gateway.generation.conversation import FunctionName, JSONObject, ToolUse
from paddock.gateway.generation.fields import (
    LARGEST,
    Fields,
    GenerationFields,
    StopStrings,
    schema_constraint,
    without_unsupported,
)
from paddock.gateway.http.sizes import MOST_MESSAGES, MOST_PARTS, MOST_TOOLS
from paddock.types import ChatPrompt, Constraint, Tool

# ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Block(Fields):
    cache_control: dict[str, Any] | None = None
    """Makes no difference: every prefix is kept for as long as there is room for it."""


class TextBlock(_Block):
    type: Literal["text"]
    text: str
    citations: list[Any] | None = None
    """Of an earlier answer: they say nothing to the model."""


class ThinkingBlock(_Block):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block):
    """Another server's thoughts; nobody here can read them."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(_Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JSONObject

    def rendered(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.input}}


_Texts = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[TextBlock], Tag("(blocks)"), Field(max_length=MOST_PARTS)],
    Discriminator(lambda value: "(blocks)" if isinstance(value, list) else "(text)"),
]


class ToolResultBlock(_Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: _Texts | None = None
    is_error: bool | None = None

    def rendered(self) -> dict[str, Any]:
        text = _joined(self.content or "")
        return {
            "role": "tool",
            "tool_call_id": self.tool_use_id,
            "content": f"Error: {text}" if self.is_error else text,
        }


def _tag(*known: str) -> Discriminator:
    def kind(block: Any) -> str | None:
        found = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
        return f"({found})" if found in known else None

    message = f"its type must be {', '.join(known[:-1])} or {known[-1]}"
    return Discriminator(kind, custom_error_type="block_type", custom_error_message=message)


_Text = Annotated[TextBlock, Tag("(text)")]
_UserBlock = Annotated[_Text | Annotated[ToolResultBlock, Tag("(tool_result)")], _tag("text", "tool_result")]
_AssistantBlock = Annotated[
    _Text
    | Annotated[ThinkingBlock, Tag("(thinking)")]
    | Annotated[RedactedThinkingBlock, Tag("(redacted_thinking)")]
    | Annotated[ToolUseBlock, Tag("(tool_use)")],
    _tag("text", "thinking", "redacted_thinking", "tool_use"),
]


def _joined(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


class UserMessage(Fields):
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("(words)")] | Annotated[list[_UserBlock], Tag("(blocks)"), Field(max_length=MOST_PARTS)],
        Discriminator(lambda value: "(blocks)" if isinstance(value, list) else "(words)"),
    ]

    def told(self) -> list[dict[str, Any]]:
        """Results are messages of their own, before what the user says to them."""
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        results = [block.rendered() for block in self.content if isinstance(block, ToolResultBlock)]
        texts = [block for block in self.content if isinstance(block, TextBlock)]
        return [*results, {"role": "user", "content": _joined(texts)}] if texts or not results else results


class AssistantMessage(Fields):
    role: Literal["assistant"]
    content: Annotated[
        Annotated[str, Tag("(words)")]
        | Annotated[list[_AssistantBlock], Tag("(blocks)"), Field(max_length=MOST_PARTS)],
        Discriminator(lambda value: "(blocks)" if isinstance(value, list) else "(words)"),
    ]

    def told(self) -> list[dict[str, Any]]:
        if isinstance(self.content, str):
            return [{"role": "assistant", "content": self.content}]
        texts = [block for block in self.content if isinstance(block, TextBlock)]
        message: dict[str, Any] = {"role": "assistant", "content": _joined(texts)}
        if thoughts := [block.thinking for block in self.content if isinstance(block, ThinkingBlock)]:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls := [block.rendered() for block in self.content if isinstance(block, ToolUseBlock)]:
            message["tool_calls"] = calls
        return [message]


def _role(message: Any) -> str | None:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return f"({role})" if role in ("user", "assistant") else None


_Message = Annotated[
    Annotated[UserMessage, Tag("(user)")] | Annotated[AssistantMessage, Tag("(assistant)")],
    Discriminator(_role, custom_error_type="role", custom_error_message="its role must be user or assistant"),
]

# ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ToolDefinition(_Block):
    type: Literal["custom"] | None = None
    name: FunctionName
    input_schema: JSONObject
    description: str | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    """Makes no difference: arguments are streamed as they are written."""

    def tool(self) -> Tool:
        return Tool(self.name, self.input_schema, self.description or "", strict=bool(self.strict))


class ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named_where_it_belongs(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name belongs to the type tool, which needs it")
        return self


class Thinking(Fields):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=LARGEST)
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _budget_where_it_belongs(self) -> Thinking:
        if self.budget_tokens is not None and self.type != "enabled":
            raise ValueError("budget_tokens belongs to the type enabled")
        return self


class OutputFormat(Fields):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


# What would need a server that runs tools itself, or that edits what it is sent; with the values that ask for nothing.
_ELSEWHERE: dict[str, tuple[Any, ...]] = {
    "container": (),
    # Sent by coding agents, to say that nothing is to be cleared.
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "mcp_servers": ([],),
    "speed": ("standard",),
}
_LABELS = (
    "cache_control",
    "diagnostics",
    "inference_geo",
    "metadata",
    "service_tier",
    "user_profile_id",
    "workspace_id",
)


class PromptFields(GenerationFields):
    """What is read, as far as it can be counted without an answer."""

    messages: list[_Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    system: _Texts | None = None
    tools: list[ToolDefinition] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: JSONObject | None = None

    @property
    def tool_use(self) -> ToolUse:
        tools = [tool.tool() for tool in self.tools or ()]
        choice = self.tool_choice or ToolChoice(type="auto")
        parallel = not choice.disable_parallel_tool_use
        match choice.type:
            case "tool":
                return ToolUse(tools, "function", choice.name or "", parallel)
            case "any":
                return ToolUse(tools, "required", parallel=parallel)
            case "auto" | "none":
                return ToolUse(tools, choice.type, parallel=parallel)

    def constraints(self) -> list[Constraint]:
        found = super().constraints()
        if self.output_config is not None and self.output_config.format is not None:
            found.append(schema_constraint(self.output_config.format.schema_, "output_config.format"))
        if self.output_format is not None:
            found.append(schema_constraint(self.output_format.schema_, "output_format"))
        return found

    def prompt(self) -> ChatPrompt:
        told = [message for turn in self.messages for message in turn.told()]
        if system := _joined(self.system or ""):
            told.insert(0, {"role": "system", "content": system})
        effort = self.output_config.effort if self.output_config is not None else None
        options = dict(self.chat_template_kwargs or {})
        if effort is not None:
            options.setdefault("reasoning_effort", effort)
        last = told[-1]
        begun = last["role"] == "assistant" and "tool_calls" not in last
        return self.tool_use.prompt(
            told,
            ending="continue" if begun and (last["content"] or last.get("reasoning_content")) else "reply",
            thinking=self._thinking(),
            thinking_budget=self.thinking.budget_tokens if self.thinking is not None else None,
            template_options=options,
        )

    def _thinking(self) -> bool | None:
        if self.thinking is None or self.thinking.type == "adaptive":
            return None
        return self.thinking.type == "enabled"

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_there(cls, data: Any) -> Any:
        return without_unsupported(data, _ELSEWHERE, _LABELS)

    @model_validator(mode="after")
    def _tools_to_choose_from(self) -> PromptFields:
        self.tool_use.check(self.constraints(), name_at="tools[{}].name")
        return self


class MessagesRequest(PromptFields):
    max_tokens: int = Field(ge=1, le=LARGEST)
    stop_sequences: StopStrings | None = None

    @model_validator(mode="after")
    def _one_way_to_stop(self) -> MessagesRequest:
        if self.stop and self.stop_sequences:
            raise InvalidRequest("stop and stop_sequences say the same: send one of them", param="stop")
        return self


class CountTokensRequest(PromptFields):
    """As a request for a message, of which it may have the rest as well."""

    max_tokens: int | None = Field(None, ge=1, le=LARGEST)
    stop_sequences: StopStrings | None = None
