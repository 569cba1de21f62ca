"""What may be asked: items that are messages, calls, results and thoughts, as a chat template will be told them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from paddock.gateway.dialects.openai.schema import LABELS
from paddock.gateway.dialects.openai.tools import call_arguments
from paddock.gateway.generation.conversation import NO_PARAMETERS, Effort, FunctionName, JSONObject, ToolUse, thinks
from paddock.gateway.generation.fields import LARGEST, Fields, GenerationFields, schema_constraint, without_unsupported
from paddock.gateway.http.sizes import MOST_MESSAGES, MOST_PARTS, MOST_TOOLS
from paddock.types import ChatPrompt, Constraint, Tool

# ── items ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TextContent(Fields):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    """Like the annotations of an earlier answer: they say nothing to the model."""


class Refusal(Fields):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


_Part = Annotated[
    Annotated[TextContent, Tag("(text)")] | Annotated[Refusal, Tag("(refusal)")],
    Discriminator(lambda part: "(refusal)" if _get(part, "type") == "refusal" else "(text)"),
]
_Content = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[_Part], Tag("(parts)"), Field(max_length=MOST_PARTS)],
    Discriminator(lambda value: "(parts)" if isinstance(value, list) else "(text)"),
]
Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(Fields):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content
    id: str | None = None
    status: Status | None = None
    phase: str | None = None

    @property
    def text(self) -> str:
        return _joined(self.content)


class CallItem(Fields):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None

    @model_validator(mode="after")
    def _is_an_object(self) -> CallItem:
        if call_arguments(self.arguments) is None:
            raise ValueError("arguments must be the JSON text of an object")
        return self

    def rendered(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": call_arguments(self.arguments)}
        return {"id": self.call_id, "type": "function", "function": function}


class ResultItem(Fields):
    type: Literal["function_call_output"]
    call_id: str
    output: _Content
    id: str | None = None
    status: Status | None = None


class ThoughtText(Fields):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Fields):
    type: Literal["reasoning"]
    summary: list[ThoughtText] = Field([], max_length=MOST_PARTS)
    content: list[ThoughtText] | None = Field(None, max_length=MOST_PARTS)
    encrypted_content: str | None = None
    """Another server's; nobody here can read it."""
    id: str | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content or self.summary)


def _kind(item: Any) -> str | None:
    kind = _get(item, "type") or "message"
    return f"({kind})" if kind in ("message", "function_call", "function_call_output", "reasoning") else None


Item = Annotated[
    Annotated[MessageItem, Tag("(message)")]
    | Annotated[CallItem, Tag("(function_call)")]
    | Annotated[ResultItem, Tag("(function_call_output)")]
    | Annotated[ReasoningItem, Tag("(reasoning)")],
    Discriminator(
        _kind,
        custom_error_type="item_type",
        custom_error_message="its type must be message, function_call, function_call_output or reasoning",
    ),
]
Input = Annotated[
    Annotated[str, Tag("(text)")]
    | Annotated[list[Item], Tag("(items)"), Field(min_length=1, max_length=MOST_MESSAGES)],
    Discriminator(lambda value: "(items)" if isinstance(value, list) else "(text)"),
]


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _joined(content: str | list[TextContent | Refusal]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def told(items: list[Any]) -> list[dict[str, Any]]:
    """The items as messages. Thoughts, words and calls of one turn of the assistant's become one message, and system
    texts that follow each other too: most templates know no other way.
    """
    messages: list[dict[str, Any]] = []
    for item in items:
        last: dict[str, Any] = messages[-1] if messages else {}
        turn = last if last.get("role") == "assistant" else None
        said = turn is not None and ("content" in turn or "tool_calls" in turn)
        match item:
            case ReasoningItem() if item.text:
                messages.append({"role": "assistant", "reasoning_content": item.text})
            case MessageItem(role="assistant"):
                if turn is None or said:
                    turn = {"role": "assistant"}
                    messages.append(turn)
                turn["content"] = item.text
            case CallItem():
                if turn is None:
                    turn = {"role": "assistant"}
                    messages.append(turn)
                turn.setdefault("tool_calls", []).append(item.rendered())
            case MessageItem(role="system" | "developer"):
                if last.get("role") == "system":
                    last["content"] += f"\n\n{item.text}"
                else:
                    messages.append({"role": "system", "content": item.text})
            case MessageItem():
                messages.append({"role": "user", "content": item.text})
            case ResultItem():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _joined(item.output)})
    return messages


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ResponseTool(Fields):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: JSONObject | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        return Tool(
            self.name, self.parameters or NO_PARAMETERS, self.description or "", strict=self.strict is not False
        )


class ChosenTool(Fields):
    type: Literal["function"]
    name: str


_Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(word)")] | Annotated[ChosenTool, Tag("(function)")],
    Discriminator(lambda value: "(word)" if isinstance(value, str) else "(function)"),
]


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    """Makes no difference: a schema that cannot be kept to strictly is refused."""

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("schema belongs to the type json_schema, which needs it")
        return self

    def constraint(self) -> Constraint | None:
        if self.type == "text":
            return None
        return schema_constraint(self.schema_ or {"type": "object"}, "text.format")


class TextOptions(Fields):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Fields):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Makes no difference: thoughts are given in full."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Fields):
    include_obfuscation: bool | None = None
    """Makes no difference: nothing is added to events."""


# What would need a server that remembers, or that runs tools itself; with the values that ask for nothing.
_ELSEWHERE: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "truncation": ("disabled",),
}


class ResponseRequest(GenerationFields):
    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=LARGEST)
    tools: list[ResponseTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: _Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    """`message.output_text.logprobs` is had here; the rest is about tools that a server runs itself."""
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: JSONObject | None = None

    @property
    def tool_use(self) -> ToolUse:
        tools = [tool.tool() for tool in self.tools or ()]
        parallel = self.parallel_tool_calls is not False
        if isinstance(self.tool_choice, ChosenTool):
            return ToolUse(tools, "function", self.tool_choice.name, parallel)
        return ToolUse(tools, self.tool_choice or "auto", parallel=parallel)

    def constraints(self) -> list[Constraint]:
        asked = self.text.format.constraint() if self.text is not None and self.text.format is not None else None
        return [*super().constraints(), *([asked] if asked is not None else [])]

    @property
    def with_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())

    def prompt(self) -> ChatPrompt:
        items = [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else list(self.input)
        if self.instructions:
            items.insert(0, MessageItem(role="system", content=self.instructions))
        effort = self.reasoning.effort if self.reasoning is not None else None
        options = dict(self.chat_template_kwargs or {})
        if effort is not None:
            options.setdefault("reasoning_effort", effort)
        return self.tool_use.prompt(told(items), thinking=thinks(effort), template_options=options)

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_needs_a_memory(cls, data: Any) -> Any:
        return without_unsupported(data, _ELSEWHERE, tuple(name for name in LABELS if name not in cls.model_fields))

    @model_validator(mode="after")
    def _tools_to_choose_from(self) -> ResponseRequest:
        self.tool_use.check(self.constraints(), name_at="tools[{}].name")
        return self
