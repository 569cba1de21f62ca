"""The answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from paddock.errors import PaddockError
from paddock.types import CacheReport, TextLogprobs


class Failure(msgspec.Struct):
    error: str


def ollama_error_body(error: PaddockError) -> dict[str, Any]:
    return {"error": error.message}


class CalledFunction(msgspec.Struct, kw_only=True):
    index: int
    name: str
    arguments: dict[str, Any]


class ToolCall(msgspec.Struct, kw_only=True):
    id: str
    function: CalledFunction


class AssistantMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str = ""
    tool_calls: list[ToolCall] = []


class TokenLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TokenLogprob, kw_only=True):
    top_logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET


class Metrics(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of a complete answer. Durations are in nanoseconds."""

    done_reason: Literal["stop", "length", "load", "unload"] | msgspec.UnsetType = msgspec.UNSET
    total_duration: int | msgspec.UnsetType = msgspec.UNSET
    load_duration: int | msgspec.UnsetType = msgspec.UNSET
    prompt_eval_count: int | msgspec.UnsetType = msgspec.UNSET
    """With the tokens that were cached."""
    prompt_eval_duration: int | msgspec.UnsetType = msgspec.UNSET
    eval_count: int | msgspec.UnsetType = msgspec.UNSET
    eval_duration: int | msgspec.UnsetType = msgspec.UNSET
    cache_report: CacheReport | msgspec.UnsetType = msgspec.UNSET
    """Paddock's own, if the request asks for it."""


class ChatLine(Metrics, kw_only=True):
    """A part of a chat, or all of it."""

    model: str
    created_at: str
    message: AssistantMessage
    done: bool
    logprobs: list[Logprob] = []


class GenerateLine(Metrics, kw_only=True):
    """A part of an answer, or all of it."""

    model: str
    created_at: str
    response: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str = ""
    done: bool
    context: list[int] = []
    """The tokens of the prompt and the answer, at the end."""
    logprobs: list[Logprob] = []


def logprobs_of(items: list[TextLogprobs] | None) -> list[Logprob]:
    def one(piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

    return [
        Logprob(
            **one(item.piece, item.logprob),
            top_logprobs=[TokenLogprob(**one(piece, logprob)) for _, piece, logprob in item.top] or msgspec.UNSET,
        )
        for item in items or ()
    ]


class Embeddings(msgspec.Struct, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OneEmbedding(msgspec.Struct):
    embedding: list[float]


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ModelDetails(msgspec.Struct, kw_only=True):
    parent_model: str = ""
    format: str = "gguf"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: int | msgspec.UnsetType = msgspec.UNSET
    embedding_length: int | msgspec.UnsetType = msgspec.UNSET


class ListedModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    """Identifies the files by their paths, sizes and times, or is that of Ollama's blob."""
    details: ModelDetails
    capabilities: list[str]


class ModelList(msgspec.Struct):
    models: list[ListedModel]


class RunningModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class RunningModels(msgspec.Struct):
    models: list[RunningModel]


class ShownTensor(msgspec.Struct):
    name: str
    type: str
    shape: tuple[int, ...]


class ShownModel(msgspec.Struct, kw_only=True, omit_defaults=True):
    license: str = ""
    modelfile: str
    parameters: str = ""
    template: str = ""
    system: str = ""
    details: ModelDetails
    messages: list[dict[str, Any]] = []
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    tensors: list[ShownTensor] | msgspec.UnsetType = msgspec.UNSET


class Version(msgspec.Struct):
    version: str
    paddock: str


class Progress(msgspec.Struct, kw_only=True, omit_defaults=True):
    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0
