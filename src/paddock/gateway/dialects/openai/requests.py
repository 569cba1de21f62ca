"""The bodies of chat completions and completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag, model_validator

from paddock.errors import InvalidRequest
from paddock.gateway.dialects.openai.tools import EarlierCall, FunctionTool, NamedToolChoice, openai_tool_use
from paddock.gateway.generation.conversation import (
    ConversationFields,
    Effort,
    TextOr,
    ToolChoice,
    ToolUse,
    by_field,
)
from paddock.gateway.generation.fields import LARGEST, GenerationFields, Prompts, schema_constraint
from paddock.gateway.generation.media import content_of, media_part, url_part
from paddock.gateway.http.fields import Fields, Unsupported
from paddock.gateway.http.sizes import MOST_ANSWERS, MOST_CALLS, MOST_MESSAGES, MOST_TOOLS
from paddock.types import ChatPrompt, Constraint, MediaPrompt, TextPrompt


class TextPart(Fields):
    type: Literal["text"]
    text: str


class ImageUrl(Fields):
    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None
    """No effect: the projector decides the resolution, within `--image-max-tokens`."""


class ImagePart(Fields):
    type: Literal["image_url"]
    image_url: ImageUrl

    def rendered(self, at: str) -> dict[str, Any]:
        param = f"{at}.image_url.url"
        return url_part("image", self.image_url.url, param)


class InputAudio(Fields):
    data: str
    format: Literal["wav", "mp3", "flac"] | None = None
    """No effect: the data says it itself."""


class AudioPart(Fields):
    type: Literal["input_audio"]
    input_audio: InputAudio

    def rendered(self, at: str) -> dict[str, Any]:
        param, data = f"{at}.input_audio.data", self.input_audio.data
        # As in llama-server the data may be a URL.
        is_url = data[:8].lower().startswith(("http://", "https://", "file://"))
        return url_part("audio", data, param) if is_url else media_part("audio", data, param)


_Part = Annotated[
    Annotated[TextPart, Tag("(text)")]
    | Annotated[ImagePart, Tag("(image_url)")]
    | Annotated[AudioPart, Tag("(input_audio)")],
    by_field("type", "text", "image_url", "input_audio"),
]
_WITH_MEDIA = ("user", "tool")


class Message(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextOr[_Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[EarlierCall] | None = Field(None, max_length=MOST_CALLS)
    tool_call_id: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _check_role(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message must have content")
        for name in ("tool_calls", "reasoning_content", "refusal"):
            if getattr(self, name) and self.role != "assistant":
                raise ValueError(f"{name} is allowed in assistant messages only")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("tool_call_id is allowed in tool messages only")
        if self._has_media and self.role not in _WITH_MEDIA:
            raise ValueError("images and audio are allowed in user and tool messages only")
        return self

    @property
    def _has_media(self) -> bool:
        return isinstance(self.content, list) and any(not isinstance(part, TextPart) for part in self.content)

    def rendered(self, at: str) -> dict[str, Any]:
        """As chat templates expect it. `at` is its path in the request."""
        message = self.model_dump(exclude_none=True, exclude={"tool_calls", "refusal"})
        if isinstance(self.content, list) and self._has_media:
            message["content"] = content_of(self.content, f"{at}.content")
        if self.role == "developer":  # OpenAI's newer name; templates know the older one
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
    """No effect: a schema that cannot be enforced strictly is refused."""


class ResponseFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """llama-server's: the schema itself, with either type."""

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if self.json_schema is not None and self.schema_ is not None:
            raise ValueError("json_schema and schema are mutually exclusive")
        if self.json_schema is not None and self.type != "json_schema":
            raise ValueError("json_schema is allowed with type json_schema only")
        if self.type == "json_schema" and not self.has_schema:
            raise ValueError("json_schema or schema is required with type json_schema")
        if self.type == "text" and self.schema_ is not None:
            raise ValueError("schema is allowed with type json_object or json_schema only")
        return self

    @property
    def has_schema(self) -> bool:
        return self.json_schema is not None or self.schema_ is not None

    def constraint(self) -> Constraint | None:
        if self.type == "text":
            return None
        schema = self.json_schema.schema_ if self.json_schema is not None else self.schema_
        return schema_constraint({"type": "object"} if schema is None else schema, "response_format")


# Accepted, because they do not change the answer.
LABELS = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)


class OpenAIFields(GenerationFields):
    """The fields that both endpoints have."""

    unsupported: ClassVar[Unsupported] = {
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
        "prefill_assistant": (True, False),
        "preserve_reasoning": (True, False),
        "reasoning_budget_message": ("",),
        "reasoning_control": (False,),
        "reasoning_effort": (),
        "reasoning_format": ("none",),
        "skip_chat_parsing": (True, False),
        "thinking": (),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "verbosity": ("medium",),
        "web_search_options": (),
    }
    without_effect = LABELS

    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=-1, le=LARGEST)
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    response_format: ResponseFormat | None = None

    def constraints(self) -> list[Constraint]:
        found, form = super().constraints(), self.response_format
        constraint = form.constraint() if form is not None else None
        if form is None or constraint is None or (self.json_schema is not None and not form.has_schema):
            return found  # with `json_schema`, a json_object needs no schema of its own
        return [*found, constraint]

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _check_stream_options(self) -> OpenAIFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options requires stream: true")
        return self


class ChatCompletionRequest(OpenAIFields, ConversationFields):
    tool_name_path = "tools[{}].function.name"

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=-1, le=LARGEST)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[FunctionTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice[NamedToolChoice] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def tool_use(self) -> ToolUse:
        tools = [tool.tool() for tool in self.tools or ()]
        return openai_tool_use(tools, self.tool_choice, self.parallel_tool_calls)

    def prompt(self) -> ChatPrompt:
        options = self.template_options(self.reasoning_effort)
        return self.tool_use.prompt(
            [message.rendered(f"messages[{index}]") for index, message in enumerate(self.messages)],
            ending=self._ending(),
            thinking=self.thinking_of(self.enable_thinking, options, self.reasoning_effort),
            template_options=options,
            **self.reply_options(stream=self.stream),
        )

    def _ending(self) -> Literal["reply", "continue", "none"]:
        """A last message of the assistant is continued, unless the request starts a new reply after it."""
        if self.continue_final_message or (
            self.continue_final_message is None
            and self.add_generation_prompt is not True
            and self.is_continued(self.messages[-1].model_dump(exclude={"refusal"}))
        ):
            return "continue"
        return "none" if self.add_generation_prompt is False else "reply"

    @model_validator(mode="after")
    def _check_consistency(self) -> ChatCompletionRequest:
        last = self.messages[-1]
        if self.continue_final_message and (last.role != "assistant" or last.tool_calls):
            raise InvalidRequest(
                "the last message is not an assistant message that can be continued", param="continue_final_message"
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt are mutually exclusive",
                param="continue_final_message",
            )
        reserved = {"messages", "tools", "add_generation_prompt"} & (self.chat_template_kwargs or {}).keys()
        if reserved:
            raise InvalidRequest(
                f"chat_template_kwargs must not contain {min(reserved)}: send it as a field",
                param="chat_template_kwargs",
            )
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be at least 1")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs requires logprobs: true")
        return self

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer; None or -1: up to the end of the context."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(OpenAIFields):
    token_lists = frozenset({"prompt"})

    prompt: Prompts
    suffix: str | None = None
    spm_infill: bool | None = None
    """Paddock's own, for llama-server's option: with `suffix`, the suffix comes before the prompt."""
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=5)
    best_of: int | None = Field(None, ge=1, le=MOST_ANSWERS)

    @property
    def answers(self) -> int:
        """The number of answers to generate; the best `n` are returned."""
        return self.best_of or self.n or 1

    @model_validator(mode="after")
    def _check_consistency(self) -> CompletionRequest:
        if self.answers < (self.n or 1):
            raise InvalidRequest(
                f"best_of is {self.answers}; it must be at least n, which is {self.n}", param="best_of"
            )
        if self.stream and self.answers > (self.n or 1):
            raise InvalidRequest("best_of cannot be streamed", param="best_of")
        if self.post_sampling_probs and self.answers > (self.n or 1):
            raise InvalidRequest("post_sampling_probs and best_of are mutually exclusive", param="post_sampling_probs")
        if self.suffix and not all(isinstance(prompt, TextPrompt) for prompt in self.prompt):
            raise InvalidRequest("suffix requires prompts that are texts, not token ids", param="suffix")
        if self.echo and any(isinstance(prompt, MediaPrompt) for prompt in self.prompt):
            raise InvalidRequest("echo and multimodal_data are mutually exclusive", param="echo")
        if self.suffix and self.echo:
            raise InvalidRequest("echo and suffix are mutually exclusive", param="echo")
        return self
