"""Usage, timings, log-probabilities and tool calls of an answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from paddock.types.reports import CacheReport

FinishReason = Literal["stop", "length", "abort"]


class ReceiptFacts(msgspec.Struct, frozen=True):
    """What only the worker knows for the receipt of an answer."""

    prompt_sha256: str
    seed: int
    tokens: list[int]
    """All tokens of the answer, also those without text."""
    text_sha256: str
    identity: dict[str, Any] | None = None
    """Of the server that computed it (`receipts.Identity`), if it is not this one."""


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    held_tokens: int = 0
    """Tokens of prompt and answer in the context at the end."""
    truncated: bool = False
    """The answer reached the end of the context."""
    cache_report: CacheReport | None = None
    """If requested, at the end."""
    receipt: ReceiptFacts | None = None
    """If requested, at the end."""


class TimeParts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the time of an answer was spent on, in seconds. The parts do not overlap."""

    load: float = 0.0
    """Until its model was loaded and a replica was chosen."""
    queue: float = 0.0
    """Until its first prefill step, also while another request computed a prefix that both share; and for a slot after
    a preemption.
    """
    media: float = 0.0
    """Encoding of its images and sound."""
    restore: float = 0.0
    """Its cached prefix, from host memory and disk to the context."""
    prefill: float = 0.0
    decode: float = 0.0
    others: float = 0.0
    """From its first prefill step on: prompts of other requests, steps without it, other models on the same cores."""
    overhead: float = 0.0
    """The rest: the chat template, the tokenizer, messages between processes, attempts that failed."""

    @property
    def total(self) -> float:
        return (
            self.load
            + self.queue
            + self.media
            + self.restore
            + self.prefill
            + self.decode
            + self.others
            + self.overhead
        )


class Timings(msgspec.Struct, frozen=True):
    """Durations in seconds, and what the draft model contributed."""

    prompt: float = 0.0
    """From the first prefill step to the first token."""
    generation: float = 0.0
    """From the first token on."""
    drafted: int = 0
    """Tokens that the draft model proposed."""
    accepted: int = 0
    """Drafted tokens that became part of the answer."""
    parts: TimeParts | None = None
    """At the end of an answer."""


class PromptProgress(msgspec.Struct, frozen=True, array_like=True):
    """Progress of the prefill, in tokens, and the seconds since its first step."""

    total: int
    cached: int
    processed: int
    seconds: float


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of a token, and those of the most likely tokens at its position."""

    chosen: float
    top: list[tuple[int, float]]


class TextLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """`TokenLogprobs` with the bytes of each token."""

    token: int
    piece: bytes
    logprob: float
    top: list[tuple[int, bytes, float]]


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A part of a tool call. The first delta has the id and the name, the others have parts of the arguments' JSON."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    withdrawn: bool = False
    """The call cannot be parsed. No more deltas of it follow, and its text is sent as content."""
