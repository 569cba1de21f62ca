"""The shapes of OpenAI's API: pydantic for what comes in, msgspec for what goes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import AliasChoices, Discriminator, Field, Tag, model_validator

from paddock.errors import InvalidRequest
from paddock.gateway.dialects.openai.tools import FunctionTool, MadeCall, NamedToolChoice, ToolChoice
from paddock.gateway.generation.conversation import Effort, JSONObject, ToolUse, thinks
from paddock.gateway.generation.fields import (
    LARGEST,
    Fields,
    GenerationFields,
    Prompts,
    schema_constraint,
    without_unsupported,
)
from paddock.gateway.generation.timings import NativeProgress, NativeTimings
from paddock.gateway.http.sizes import MOST_ANSWERS, MOST_CALLS, MOST_MESSAGES, MOST_PARTS, MOST_TOOLS
from paddock.types import ChatPrompt, Constraint, TextPrompt

# ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TextPart(Fields):
    type: Literal["text"]
    text: str


# A discriminated union, so that an error is about the branch the client meant. The tags become part of pydantic's
# path; not being identifiers they are left out of the `param` we report.
Content = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[TextPart], Tag("(parts)"), Field(max_length=MOST_PARTS)],
    Discriminator(lambda value: "(parts)" if isinstance(value, list) else "(text)"),
]


class Message(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeCall] | None = Field(None, max_length=MOST_CALLS)
    tool_call_id: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        for name in ("tool_calls", "reasoning_content", "refusal"):
            if getattr(self, name) and self.role != "assistant":
                raise ValueError(f"{name} belongs to assistant messages")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("tool_call_id belongs to tool messages")
        return self

    def rendered(self) -> dict[str, Any]:
        """As chat templates know it."""
        message = self.model_dump(exclude_none=True, exclude={"tool_calls", "refusal"})
        if self.role == "developer":  # OpenAI's newer name for it; templates know the older one
            message["role"] = "system"
        if self.refusal and not self.content:
            message["content"] = self.refusal
        if self.tool_calls:
            message["tool_calls"] = [call.rendered() for call in self.tool_calls]
        return message


class StreamOptions(Fields):
    include_usage: bool = False


class NamedSchema(Fields):
    schema_: dict[str, Any] = Field(alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    """Makes no difference: a schema that cannot be kept to strictly is refused."""


class ResponseFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """llama-server's: what the JSON object must look like."""

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema, which needs it")
        if self.schema_ is not None and self.type != "json_object":
            raise ValueError("schema belongs to the type json_object")
        return self

    def constraint(self) -> Constraint | None:
        if self.type == "text":
            return None
        schema = self.json_schema.schema_ if self.json_schema is not None else self.schema_
        return schema_constraint({"type": "object"} if schema is None else schema, "response_format")


# What cannot be honoured, by an endpoint that does not have the field, with the values that ask for nothing and
# therefore pass.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "enable_thinking": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "parse_tool_calls": (True, False),
    "reasoning_budget_message": ("",),
    "reasoning_control": (False,),
    "reasoning_effort": (),
    "reasoning_format": ("none",),
    "thinking": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Accepted, because they ask for nothing that would change the answer.
LABELS = (
    *("metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier"),
    *("store", "user"),
)


class OpenAIFields(GenerationFields):
    """What the two completion endpoints have in common."""

    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=-1, le=LARGEST)
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    response_format: ResponseFormat | None = None

    def constraints(self) -> list[Constraint]:
        asked = self.response_format.constraint() if self.response_format is not None else None
        return [*super().constraints(), *([asked] if asked is not None else [])]

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_there(cls, data: Any) -> Any:
        missing = {name: neutral for name, neutral in _NOT_YET.items() if name not in cls.model_fields}
        return without_unsupported(data, missing, LABELS)

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> OpenAIFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is allowed with stream: true only")
        return self


class ChatCompletionRequest(OpenAIFields):
    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=-1, le=LARGEST)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[FunctionTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    """As llama-server has it: `none` leaves thoughts where they stand in the content."""
    thinking_budget_tokens: int | None = Field(
        None,
        ge=-1,
        le=LARGEST,
        validation_alias=AliasChoices("thinking_budget_tokens", "reasoning_budget_tokens", "reasoning_budget"),
    )
    """How many tokens a thought may have; -1: as many as it likes, 0: there is none."""
    chat_template_kwargs: JSONObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def tool_use(self) -> ToolUse:
        tools = [tool.tool() for tool in self.tools or ()]
        parallel = self.parallel_tool_calls is not False
        if isinstance(self.tool_choice, NamedToolChoice):
            return ToolUse(tools, "function", self.tool_choice.function.name, parallel)
        return ToolUse(tools, self.tool_choice or "auto", parallel=parallel)

    def prompt(self) -> ChatPrompt:
        options = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            options.setdefault("reasoning_effort", self.reasoning_effort)
        return self.tool_use.prompt(
            [message.rendered() for message in self.messages],
            ending=self._ending(),
            thinking=False if self.thinking_budget_tokens == 0 else self._thinking(options),
            thinking_budget=self.thinking_budget_tokens if self.thinking_budget_tokens != -1 else None,
            split_reasoning=self.reasoning_format != "none",
            template_options=options,
        )

    def _thinking(self, options: dict[str, Any]) -> bool | None:
        """Whether to think, as far as the request says so, in any of the ways there are to say it."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        for name in ("enable_thinking", "thinking"):
            if isinstance(options.get(name), bool):
                return bool(options[name])
        return thinks(self.reasoning_effort)

    def _ending(self) -> Literal["reply", "continue", "none"]:
        """A last message of the assistant's is gone on with, unless the request says that a reply begins after it."""
        last = self.messages[-1]
        begun = last.role == "assistant" and not last.tool_calls and bool(last.content or last.reasoning_content)
        if self.continue_final_message or (
            begun and self.continue_final_message is None and self.add_generation_prompt is not True
        ):
            return "continue"
        return "none" if self.add_generation_prompt is False else "reply"

    @model_validator(mode="after")
    def _tools_to_choose_from(self) -> ChatCompletionRequest:
        self.tool_use.check(self.constraints(), name_at="tools[{}].function.name")
        return self

    @model_validator(mode="after")
    def _ends_somehow(self) -> ChatCompletionRequest:
        last = self.messages[-1]
        if self.continue_final_message and (last.role != "assistant" or last.tool_calls):
            raise InvalidRequest("there is no last assistant message to go on with", param="continue_final_message")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest("add_generation_prompt would end the message", param="continue_final_message")
        reserved = {"messages", "tools", "add_generation_prompt"} & (self.chat_template_kwargs or {}).keys()
        if reserved:
            raise InvalidRequest(f"{min(reserved)} is a field of its own", param="chat_template_kwargs")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> ChatCompletionRequest:
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be at least 1")
        if (self.thinking_budget_tokens or -1) > 0 and self.reasoning_format == "none":
            raise InvalidRequest("thoughts that stay in the content are not counted", param="thinking_budget_tokens")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is allowed with logprobs: true only")
        return self

    @property
    def limit(self) -> int | None:
        """The most tokens the answer may have; None or -1 is up to the context's end."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(OpenAIFields):
    token_lists = frozenset({"prompt"})

    prompt: Prompts
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=5)
    best_of: int | None = Field(None, ge=1, le=MOST_ANSWERS)

    @property
    def answers(self) -> int:
        """How many are generated, of which the best `n` are returned."""
        return self.best_of or self.n or 1

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.answers < (self.n or 1):
            raise InvalidRequest(f"best_of must be at least n, which is {self.n}", param="best_of")
        if self.stream and self.answers > (self.n or 1):
            raise InvalidRequest("which answers are the best is known at the end only: no stream", param="best_of")
        if self.post_sampling_probs and self.answers > (self.n or 1):
            raise InvalidRequest("best_of goes by the model's own probabilities", param="post_sampling_probs")
        if self.suffix and not all(isinstance(prompt, TextPrompt) for prompt in self.prompt):
            raise InvalidRequest("a suffix goes with prompts that are texts", param="suffix")
        if self.suffix and self.echo:
            raise InvalidRequest("echo cannot be had with a suffix", param="echo")
        return self


# ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class CompletionUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ToolCallFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: ToolCallFunction


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    malformed_tool_call: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """Something in the content began like a tool call but could not be understood."""


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class Choice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: CompletionUsage
    timings: NativeTimings


class FunctionDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The first of each call has its id, type and name; the others more of its arguments."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta


class ChoiceDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    malformed_tool_call: bool = False


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | None = None


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | msgspec.UnsetType | None = msgspec.UNSET
    """With `include_usage`: null in every chunk but the last, which has it and no choices. Otherwise absent."""
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET
    """In the last chunk, and in every one with `timings_per_token`."""
    prompt_progress: NativeProgress | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """OpenAI's older shape: a list for each property instead of an object for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, kw_only=True):
    """A whole answer, or a part of one in a stream."""

    id: str
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | msgspec.UnsetType | None = msgspec.UNSET
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET
    """Of a whole answer; in a stream as with chat completions."""
    prompt_progress: NativeProgress | msgspec.UnsetType = msgspec.UNSET
