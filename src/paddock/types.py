"""What crosses folders: requests, results and the plan of one engine step. Data only, no behaviour."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "abort"]


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen. The defaults are llama-server's."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """Messages to be rendered by the model's own chat template."""

    messages: list[dict[str, Any]]


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    tokens: list[int]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One generation as a worker receives it."""

    id: int
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a loaded model says of itself."""

    description: str
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_params: int
    size_bytes: int


class EngineOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything the engine needs to open a model: no port, no key, nothing of HTTP."""

    n_ctx: int = 16384
    n_batch: int = 2048
    n_ubatch: int = 512
    n_gpu_layers: int = -1
    n_threads: int = 1
    flash_attn: Literal["on", "off", "auto"] = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    repack: bool = True
    """Weights rearranged for this CPU's fastest instructions. Off where those instructions turned out not to work."""
    verbose: bool = False


# ── one engine step ──────────────────────────────────────────────────────────────────────────────────────────────────


class Span(msgspec.Struct):
    """Consecutive tokens of one sequence to be decoded in one step.

    `sampling` set means: choose the token that follows the last one. `drawn` is how many tokens this request has
    sampled before, so that a draw depends on the seed and its place alone, never on who else is in the batch.
    """

    sequence: int
    start: int
    tokens: list[int]
    sampling: SamplingParams | None = None
    drawn: int = 0
