"""The body of a response request, and how its items become the messages of a chat template."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, PrivateAttr, Tag, model_validator

from paddock.gateway.dialects.openai.requests import LABELS
from paddock.gateway.dialects.openai.tools import openai_tool_use
from paddock.gateway.dialects.responses.tools import (
    ResponseTool,
    WebSearch,
    check_tools,
    full_name,
    functions,
)
from paddock.gateway.dialects.responses.turn import Turn
from paddock.gateway.generation.conversation import (
    TEXT_OR_LIST,
    ConversationFields,
    Effort,
    TextOr,
    ToolChoice,
    ToolUse,
    by_field,
    call_arguments,
    joined,
    tool_call,
    tool_result,
)
from paddock.gateway.generation.fields import LARGEST, schema_constraint
from paddock.gateway.generation.media import content_of, url_part
from paddock.gateway.http.fields import Fields, Unsupported
from paddock.gateway.http.sizes import MOST_MESSAGES, MOST_PARTS, MOST_TOOLS
from paddock.types import ChatPrompt, Constraint

MAX_ID = 128

# ── items ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TextContent(Fields):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    """From an earlier answer, as the annotations. Not part of the prompt."""


class ImageContent(Fields):
    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high", "original"] | None = None
    """No effect, as in chat completions."""

    def rendered(self, at: str) -> dict[str, Any]:
        param = f"{at}.image_url"
        return url_part("image", self.image_url, param)


class Refusal(Fields):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


def _part_tag(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return f"({kind})" if kind in ("refusal", "input_image") else "(text)"


_Part = Annotated[
    Annotated[TextContent, Tag("(text)")]
    | Annotated[Refusal, Tag("(refusal)")]
    | Annotated[ImageContent, Tag("(input_image)")],
    Discriminator(_part_tag),
]
_Content = TextOr[_Part]


class _Item(Fields):
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(_Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content
    phase: str | None = None

    @property
    def text(self) -> str:
        return joined(self.content)

    @model_validator(mode="after")
    def _check_images(self) -> MessageItem:
        parts = self.content if isinstance(self.content, list) else []
        if self.role != "user" and any(isinstance(part, ImageContent) for part in parts):
            raise ValueError("images are allowed in user messages and outputs of calls only")
        return self


class CallItem(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str

    @model_validator(mode="after")
    def _check_arguments(self) -> CallItem:
        call_arguments(self.arguments)
        return self

    def rendered(self) -> dict[str, Any]:
        return tool_call(self.call_id, full_name(self.namespace, self.name), call_arguments(self.arguments))


class ResultItem(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: _Content


class ThoughtText(Fields):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(_Item):
    type: Literal["reasoning"]
    summary: list[ThoughtText] = Field([], max_length=MOST_PARTS)
    content: list[ThoughtText] | None = Field(None, max_length=MOST_PARTS)
    encrypted_content: str | None = None
    """From another server. Left out of the prompt."""

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content or self.summary)


Item = Annotated[
    Annotated[MessageItem, Tag("(message)")]
    | Annotated[CallItem, Tag("(function_call)")]
    | Annotated[ResultItem, Tag("(function_call_output)")]
    | Annotated[ReasoningItem, Tag("(reasoning)")],
    by_field("type", "message", "function_call", "function_call_output", "reasoning", default="message"),
]
Input = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[Item], Tag("(list)"), Field(min_length=1, max_length=MOST_MESSAGES)],
    TEXT_OR_LIST,
]


def _content(content: str | list[Any], at: str) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else content_of(content, at)


def rendered(items: list[Any], *, first: int = 0) -> list[dict[str, Any]]:
    """The items as messages. Reasoning, text and calls of one assistant turn become one message, and so do adjacent
    system texts: most templates support nothing else. `first`: the number of the first item in the request.
    """
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items, first):
        last: dict[str, Any] = messages[-1] if messages else {}
        turn = last if last.get("role") == "assistant" else None
        is_answered = turn is not None and ("content" in turn or "tool_calls" in turn)
        match item:
            case ReasoningItem() if item.text:
                messages.append({"role": "assistant", "reasoning_content": item.text})
            case MessageItem(role="assistant"):
                if turn is None or is_answered:
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
                messages.append({"role": "user", "content": _content(item.content, f"input[{number}].content")})
            case ResultItem():
                messages.append(tool_result(item.call_id, _content(item.output, f"input[{number}].output")))
    return messages


# ── other fields ──────────────────────────────────────────────────────────────────────────────────────────────────────


class ChosenTool(Fields):
    type: Literal["function"]
    name: str


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    """No effect: a schema that cannot be enforced strictly is refused."""

    @model_validator(mode="after")
    def _check_schema(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("schema is required with type json_schema, and allowed only with it")
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
    """No effect: the reasoning is returned in full."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Fields):
    include_obfuscation: bool | None = None
    """No effect: nothing is added to events."""


class ConversationRef(Fields):
    id: str = Field(min_length=1, max_length=MAX_ID)


class ResponseRequest(ConversationFields):
    # These need a server that runs tools itself, or answers when nobody waits.
    unsupported: ClassVar[Unsupported] = {
        "background": (False,),
        "context_management": ([],),
        "max_tool_calls": (),
        "moderation": (),
        "prompt": (),
        "truncation": ("disabled",),
    }
    without_effect = LABELS | {"client_metadata"}

    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=LARGEST)
    tools: list[ResponseTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice[ChosenTool] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    """`message.output_text.logprobs` is supported; the rest is about tools that the server runs itself."""
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    """Whether the response is stored; the server's setting if null."""
    previous_response_id: str | None = Field(None, min_length=1, max_length=MAX_ID)
    """The stored response that this one continues. Its instructions are not taken over."""
    conversation: Annotated[str, Field(min_length=1, max_length=MAX_ID)] | ConversationRef | None = None
    """The conversation whose items come first, and to which input and output are added."""
    _turn: Turn = PrivateAttr(default_factory=Turn)

    @property
    def turn(self) -> Turn:
        """What is stored of the conversation, and where this turn is."""
        return self._turn

    def begin(self, turn: Turn) -> None:
        """Continue what is stored."""
        self._turn = turn

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation

    @property
    def items(self) -> list[Any]:
        """The input as items."""
        return [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else list(self.input)

    @property
    def functions(self) -> dict[str, tuple[str | None, str]]:
        """The namespace and the name of every function, by its name in the prompt."""
        return {full_name(space, tool.name): (space, tool.name) for _, space, tool in functions(self.tools)}

    @property
    def tool_use(self) -> ToolUse:
        tools = [tool.tool(space) for _, space, tool in functions(self.tools)]
        return openai_tool_use(tools, self.tool_choice, self.parallel_tool_calls)

    def ignored(self) -> list[str]:
        searches = [f"tools[{at}]" for at, tool in enumerate(self.tools or ()) if isinstance(tool, WebSearch)]
        return [*super().ignored(), *searches]

    @model_validator(mode="after")
    def _check_tools(self) -> ResponseRequest:
        check_tools(self.tools)
        self.tool_use.check(self.constraints(), name_path=self.tool_name_path)
        return self

    def constraints(self) -> list[Constraint]:
        form = self.text.format.constraint() if self.text is not None and self.text.format is not None else None
        return [*super().constraints(), *([form] if form is not None else [])]

    @property
    def with_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())

    def prompt(self) -> ChatPrompt:
        items = [*self._turn.history, *self.items]
        if self.instructions:
            items.insert(0, MessageItem(role="system", content=self.instructions))
        effort = self.reasoning.effort if self.reasoning is not None else None
        options = self.template_options(effort)
        return self.tool_use.prompt(
            rendered(items, first=-1 if self.instructions else 0),
            thinking=self.thinking_of(None, options, effort),
            template_options=options,
            **self.reply_options(stream=self.stream),
        )
