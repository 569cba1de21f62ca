"""The request fields that all dialects share, and the one place where they become a `GenerateRequest`."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StringConstraints, model_validator

from paddock.config import LARGEST_SCALE, MOST_DRAFTED
from paddock.config.fields import speculation_type
from paddock.errors import InvalidRequest, UnsupportedParameter
from paddock.gateway.generation.media import media_prompt
from paddock.gateway.generation.sampling_fields import SamplingFields
from paddock.gateway.http import sizes
from paddock.gateway.http.fields import BodyFields, Fields, Unsupported
from paddock.normalizers import NORMALIZERS, checked_normalizer
from paddock.types import (
    Adapters,
    Constraint,
    GenerateRequest,
    MediaPrompt,
    MixedPrompt,
    Origin,
    Prompt,
    SpeculationType,
    TextPrompt,
    TokenPrompt,
    unknown_formats,
)

JOB_ID = r"[!-~]{1,256}"
"""A job id: characters that are safe in a header and in a log."""
LARGEST = sizes.LARGEST_INTEGER


_Stops = list[Annotated[str, StringConstraints(min_length=1, max_length=sizes.LONGEST_STOP)]]
StopStrings = Annotated[
    _Stops,
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | _Stops),
    Field(max_length=sizes.MOST_STOPS),
]


Normalizers = Annotated[
    list[Annotated[str, AfterValidator(checked_normalizer)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]),
    Field(max_length=len(NORMALIZERS)),
]


def _prompts(value: Any, most: int = sizes.MOST_PROMPTS) -> list[Prompt]:
    """A text, token ids, both in one list, or a list of such prompts. A list that contains a number is one prompt."""
    one = not isinstance(value, list) or any(type(part) is int for part in value)
    values = [value] if one else value
    if not 0 < len(values) <= most:
        raise ValueError(f"there are {len(values)} prompts; the limits are 1 and {most}")
    return [_prompt(part, "prompt" if one else f"prompt[{index}]") for index, part in enumerate(values)]


def _prompt(value: Any, param: str) -> Prompt:
    if isinstance(value, dict) and "prompt_string" in value:
        if more := value.keys() - {"prompt_string", "multimodal_data"}:
            raise ValueError(f"{min(more)!r} is not supported in a prompt")
        files, value = value.get("multimodal_data"), value["prompt_string"]
        if files:
            return media_prompt(value, files, param)
    if isinstance(value, str):
        return TextPrompt(value)
    check_parts(value, "a prompt must be a text, a list of token ids, or a list of both")
    return MixedPrompt(value) if any(type(part) is str for part in value) else TokenPrompt(value)


def check_parts(value: Any, expected: str) -> None:
    """Refuse what is not a list of texts and token ids."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int, str}:
        raise ValueError(expected)
    tokens = [part for part in value if type(part) is int]
    if tokens and not 0 <= min(tokens) <= max(tokens) <= LARGEST:
        raise ValueError("a token id is out of range")


class PromptObject(Fields):
    """llama-server's: a text with a marker for each file (`media_marker` of `/props`), and the files as base64."""

    prompt_string: str | list[str | int]
    multimodal_data: list[str] | None = None


_Given = str | list[str | int | list[str | int]]
_GivenPrompts = str | PromptObject | list[str | int | PromptObject | list[str | int]]
Prompts = Annotated[list[Any], PlainValidator(_prompts, json_schema_input_type=_GivenPrompts)]
"""One prompt or several, as `paddock.types.Prompt`s."""


def _inputs(value: Any) -> list[Prompt]:
    """The same, for embeddings, where an input may also be an object with parts of content. An empty input has no
    vector.
    """
    value = [_content_text(part) for part in value] if isinstance(value, list) else _content_text(value)
    inputs = _prompts(value, sizes.MOST_INPUTS)
    for place, prompt in enumerate(inputs, 1):
        if isinstance(prompt, MediaPrompt):
            raise ValueError(f"input {place} of {len(inputs)} has images or audio: this endpoint takes text only")
        if prompt in (TextPrompt(""), TokenPrompt([])):
            raise ValueError(f"input {place} of {len(inputs)} is empty")
    return inputs


def _content_text(value: Any) -> Any:
    """The text of `{"content": [{"type": "text", "text": …}]}`; anything else is unchanged."""
    if not isinstance(value, dict) or "content" not in value:
        return value
    parts = value["content"]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ValueError("the content of an input must be a list of parts")
    for part in parts:
        if part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"a part of type {part.get('type')!r} is not supported: this model takes text only")
    return "".join(part["text"] for part in parts)


Inputs = Annotated[list[Any], PlainValidator(_inputs, json_schema_input_type=_Given)]
"""One input or several, as texts, token ids or both."""


class ModelFields(BodyFields):
    """A body that names a model."""

    model: str | None = None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The parts of a `GenerateRequest` that are not in the body."""

    request_id: str
    origin: Origin
    adapters: Adapters


class LoraScale(Fields):
    """An adapter by its number, and its scale."""

    id: int = Field(ge=0, le=LARGEST)
    scale: float = Field(ge=-LARGEST_SCALE, le=LARGEST_SCALE)


class GenerationFields(SamplingFields, ModelFields):
    """The parameters that every endpoint that generates has."""

    unsupported: ClassVar[Unsupported] = {
        # llama-server's
        "chat_format": (),
        "generation_prompt": ("",),
        "grammar_lazy": (False,),
        "grammar_triggers": ([],),
        "preserved_tokens": ([],),
        "t_max_prompt_ms": (-1, 0),
        # vLLM's and similar servers'
        "allowed_token_ids": ([],),
        "bad_words": ([],),
        "guided_choice": (),
        "guided_grammar": (),
        "guided_json": (),
        "guided_regex": (),
        "include_stop_str_in_output": (False,),
        "length_penalty": (1,),
        "min_tokens": (0,),
        "prompt_logprobs": (),
        "repetition_penalty": (1,),
        "stop_token_ids": ([],),
        "structured_outputs": (),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
        # Ollama's
        "format": ("",),
        "options": ({},),
        "think": (False,),
    }
    without_effect = frozenset(
        {"backend_sampling", "keep_alive", "n_cache_reuse", "priority"}
        # How long a repetition must be before its continuation is guessed is learned.
        | {"speculative.ngram_size_n", "speculative.ngram_min_hits"}
    )

    stream: bool = False
    sse_ping_interval: int | None = Field(None, ge=-1, le=LARGEST)
    """Seconds of silence in a stream before a comment is sent; -1: never."""
    timings_per_token: bool | None = None
    verbose: bool | None = None
    """OpenAI's answers have llama-server's own answer as `__verbose`."""
    return_progress: bool | None = None
    cache_report: bool | None = None
    """Paddock's own: the answer says how much of the prompt was cached, and why not more."""
    receipt: bool | None = None
    """Paddock's own: the answer to a deterministic request has a receipt, which `paddock verify` checks."""
    n_indent: int | None = Field(None, ge=0, le=LARGEST)
    stop: StopStrings | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = Field(None, ge=-1, le=LARGEST)
    n_keep: int | None = Field(None, ge=-1, le=LARGEST)
    """Prompt tokens to keep when the context is full; -1: all. Without `context_shift` the answer ends there."""
    n_discard: int | None = Field(None, ge=0, le=LARGEST)
    deterministic: bool | None = None
    normalize: Normalizers | None = None
    """Paddock's own: the normalizers to apply instead of the model's; an empty list: none."""
    skip_special_tokens: bool | None = None
    """vLLM's: false shows special tokens, also the one that ends the answer."""
    job_id: Annotated[str, StringConstraints(pattern=f"^{JOB_ID}$")] | None = None
    """Paddock's own. The header X-Job-Id has the same effect."""
    lora: list[LoraScale] | None = Field(None, max_length=sizes.MOST_ADAPTERS)
    """The scales of adapters; all others are 0. An empty list means the model's own scales."""
    grammar: str | None = Field(None, max_length=sizes.LARGEST_CONSTRAINT)
    json_schema: dict[str, Any] | bool | None = None
    regex: str | None = Field(None, max_length=sizes.LARGEST_CONSTRAINT)
    """Paddock's own."""
    draft_type: Annotated[SpeculationType | None, BeforeValidator(speculation_type)] = Field(
        None, alias="speculative.type"
    )
    """Which guesses are made, of those that the model's `spec_type` allows. The answer does not depend on it."""
    draft_n_max: int | None = Field(None, ge=0, le=MOST_DRAFTED, alias="speculative.n_max")
    """The most tokens that are guessed at once; 0: none. The answer does not depend on it."""
    draft_n_min: int | None = Field(None, ge=0, le=MOST_DRAFTED, alias="speculative.n_min")
    draft_p_min: float | None = Field(None, ge=0, le=1, alias="speculative.p_min")
    draft_ngram_size_m: int | None = Field(None, ge=0, le=LARGEST, alias="speculative.ngram_size_m")
    """The most tokens that are guessed at once from earlier text, at most as many as the model's `ngram_max`."""

    @property
    def stop_strings(self) -> list[str]:
        return self.stop or []

    def constraints(self) -> list[Constraint]:
        """Everything that constrains the shape of the answer."""
        found: list[Constraint] = []
        if self.grammar:
            # llama-server with llguidance uses the same prefix to tell Lark from GBNF.
            kind: Literal["lark", "gbnf"] = "lark" if self.grammar.startswith("%llguidance") else "gbnf"
            found.append(Constraint(kind, self.grammar, "grammar"))
        if self.json_schema is not None:
            found.append(schema_constraint(self.json_schema, "json_schema"))
        if self.regex is not None:
            found.append(Constraint("regex", self.regex, "regex"))
        return found

    def ignored(self) -> list[str]:
        """Values of `format` in schemas that no standard defines: they have no effect."""
        schemas = [msgspec.json.decode(one.source) for one in self.constraints() if one.kind == "json_schema"]
        return sorted({f"format:{name}" for schema in schemas for name in unknown_formats(schema)})

    def request(
        self, context: RequestContext, prompt: Prompt, *, max_tokens: int | None, n_probs: int = -1, **more: Any
    ) -> GenerateRequest:
        """The one place where fields become a `GenerateRequest`."""
        return GenerateRequest(
            request_id=context.request_id,
            origin=context.origin,
            adapters=context.adapters,
            prompt=prompt,
            sampling=self.sampling(n_probs=n_probs),
            max_tokens=None if max_tokens == -1 else max_tokens,
            stop=tuple(self.stop_strings),
            constraint=next(iter(self.constraints()), None),
            cache_prompt=self.cache_prompt is not False,
            id_slot=None if self.id_slot == -1 else self.id_slot,
            n_keep=self.n_keep or 0,
            n_discard=self.n_discard or 0,
            deterministic=bool(self.deterministic),
            special_tokens=self.skip_special_tokens is False,
            timings_per_token=bool(self.timings_per_token),
            return_progress=bool(self.return_progress and self.stream),
            cache_report=bool(self.cache_report),
            receipt=bool(self.receipt),
            min_indent=self.n_indent or 0,
            draft_type=self.draft_type,
            draft_n_max=self.draft_n_max,
            draft_n_min=self.draft_n_min,
            draft_p_min=self.draft_p_min,
            draft_ngram_size_m=self.draft_ngram_size_m,
            job_id=self.job_id or "",
            **more,
        )

    @classmethod
    def without_other_fields(cls, data: dict[str, Any], generation_fields: Set[str]) -> dict[str, Any]:
        """Refuse fields of other endpoints: the client expects an effect."""
        others = (data.keys() & generation_fields) - cls.model_fields.keys()
        for name in sorted(others):
            if data[name] is not None:
                raise UnsupportedParameter(f"{name!r} is not a parameter of this endpoint", param=name)
        return {name: value for name, value in data.items() if name not in others}

    @model_validator(mode="after")
    def _check_constraints(self) -> GenerationFields:
        names = [constraint.param for constraint in self.constraints()]
        if len(names) > 1:
            raise InvalidRequest(f"{' and '.join(names)} are mutually exclusive", param=names[1])
        return self


def schema_constraint(schema: dict[str, Any] | bool, param: str) -> Constraint:
    return Constraint("json_schema", msgspec.json.encode(schema).decode(), param)
