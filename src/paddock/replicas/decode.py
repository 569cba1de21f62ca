"""What llama.cpp-compatible servers say in a stream, as deltas: one reader for conversations, one for completions."""

from __future__ import annotations

import math
from typing import Any, Protocol

import msgspec

from paddock.types import CallDelta, FinishReason, PromptProgress, TextLogprobs, Timings, Usage
from paddock.wire import Delta


class Reader(Protocol):
    """Is fed the data of events, one after another."""

    prompt_tokens: int
    """As far as the server has said so."""

    def feed(self, data: bytes) -> list[Delta]:
        """Raises `Broken` for what is not understood, and `Told` for an error that the server tells of."""


class Broken(Exception):
    """It is no answer of a llama.cpp-compatible server."""


class Told(Exception):
    """The server ended the answer with an error, whose object this has."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.error = error


# ── what both have ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Progress(msgspec.Struct):
    total: int
    cache: int = 0
    processed: int = 0
    time_ms: float = 0.0

    def heard(self) -> PromptProgress:
        return PromptProgress(self.total, self.cache, self.processed, self.time_ms / 1000)


class _Timings(msgspec.Struct):
    cache_n: int = 0
    prompt_n: int = 0
    predicted_n: int = 0
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0

    def heard(self) -> Timings:
        return Timings(self.prompt_ms / 1000, self.predicted_ms / 1000, self.draft_n, self.draft_n_accepted)

    def usage(self) -> Usage:
        """So far."""
        return Usage(self.cache_n + self.prompt_n, self.predicted_n, self.cache_n)


class _Likely(msgspec.Struct):
    token: str = ""
    raw: list[int] | None = msgspec.field(name="bytes", default=None)
    id: int = -1
    logprob: float | None = None
    prob: float | None = None
    top_logprobs: list[_Likely] = []
    top_probs: list[_Likely] = []

    @property
    def piece(self) -> bytes:
        return self.token.encode() if self.raw is None else bytes(self.raw)

    @property
    def value(self) -> float:
        if self.logprob is not None:
            return self.logprob
        return math.log(self.prob) if self.prob else -math.inf

    def heard(self, most: int) -> TextLogprobs:
        top = [(one.id, one.piece, one.value) for one in (self.top_logprobs or self.top_probs)[:most]]
        return TextLogprobs(self.id, self.piece, self.value, top)


# ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────────


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None

    def heard(self) -> CallDelta:
        function = self.function or _Function()
        return CallDelta(self.index, self.id or "", function.name or "", function.arguments or "")


class _ChatDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    malformed_tool_call: bool = False


class _Logprobs(msgspec.Struct):
    content: list[_Likely] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _ChatDelta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int = 0


class _Thought(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Thought | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    error: Any = None


class ChatReader:
    """The end of an answer is held back until its usage has come, which a stream tells after it."""

    def __init__(self, *, probs: int, progress: bool, timings: bool) -> None:
        self.prompt_tokens = 0
        self._probs = probs
        self._progress = progress
        self._timings = timings
        self._decode = msgspec.json.Decoder(_Chunk).decode
        self._heard: dict[int, int] = {}
        self._calls: dict[int, dict[int, str]] = {}
        self._ending: list[Delta] = []

    def feed(self, data: bytes) -> list[Delta]:
        chunk = _decoded(self._decode, data)
        deltas: list[Delta] = []
        if chunk.prompt_progress is not None:
            self.prompt_tokens = chunk.prompt_progress.total
            if self._progress:
                deltas.append(Delta(0, "", progress=chunk.prompt_progress.heard()))
        for choice in chunk.choices:
            deltas += self._choice(choice, chunk.timings)
        if chunk.usage is not None and not chunk.choices:
            deltas += self._end(chunk.usage, chunk.timings)
        return deltas

    def _choice(self, choice: _Choice, timings: _Timings | None) -> list[Delta]:
        index, said = choice.index, choice.delta or _ChatDelta()
        calls = [call.heard() for call in said.tool_calls or ()]
        for call in calls:
            arguments = self._calls.setdefault(index, {})
            arguments[call.index] = arguments.get(call.index, "") + call.arguments
        logprobs = [item.heard(self._probs) for item in (choice.logprobs.content if choice.logprobs else None) or ()]
        if choice.finish_reason is not None:
            self._ending.append(
                Delta(
                    0,
                    said.content or "",
                    index=index,
                    finish=_FINISHES.get(choice.finish_reason, "stop"),
                    reasoning=said.reasoning_content or "",
                    calls=[*calls, *self._withdrawn(index, choice.finish_reason)] or None,
                    malformed=said.malformed_tool_call,
                    logprobs=logprobs or None,
                )
            )
            return []
        if not (said.content or said.reasoning_content or calls or logprobs):
            return []
        self._heard[index] = self._heard.get(index, 0) + 1
        told = timings if self._timings else None
        return [
            Delta(
                0,
                said.content or "",
                index=index,
                reasoning=said.reasoning_content or "",
                calls=calls or None,
                logprobs=logprobs or None,
                usage=told.usage() if told is not None else None,
                timings=told.heard() if told is not None else None,
            )
        ]

    def _withdrawn(self, index: int, finish: str) -> list[CallDelta]:
        """Calls that were begun and proved to be none: an answer that ends with words has no others."""
        calls = self._calls.get(index, {})
        return [CallDelta(number, withdrawn=True) for number in calls] if finish == "stop" else []

    def _end(self, usage: _Usage, timings: _Timings | None) -> list[Delta]:
        """One server tells the usage of each answer, another that of all together: each has what was heard of it, and
        the last one the rest.
        """
        ending, self._ending = self._ending, []
        self.prompt_tokens = usage.prompt_tokens
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details is not None else 0
        thought = usage.completion_tokens_details
        left = usage.completion_tokens
        ended = []
        for number, delta in enumerate(ending, 1):
            last = number == len(ending)
            count = left if last else min(left, self._heard.get(delta.index, 0))
            left -= count
            told = Usage(
                usage.prompt_tokens, count, cached, thought.reasoning_tokens if last and thought is not None else 0
            )
            heard = timings.heard() if timings is not None else None
            ended.append(msgspec.structs.replace(delta, usage=told, timings=heard))
        return ended


_FINISHES: dict[str, FinishReason] = {"length": "length", "abort": "abort"}


# ── completions ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Part(msgspec.Struct):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    index: int = 0
    id_slot: int = 0
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    stop_type: str = ""
    stopping_word: str = ""
    prompt: str = ""
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    completion_probabilities: list[_Likely] | None = None
    error: Any = None


class CompletionReader:
    def __init__(self, *, probs: int, progress: bool, timings: bool, tokens: bool) -> None:
        self.prompt_tokens = 0
        self.prompt = ""
        """As the server says it read it, once an answer has ended."""
        self._probs = probs
        self._progress = progress
        self._timings = timings
        self._tokens = tokens
        self._decode = msgspec.json.Decoder(_Part).decode

    def feed(self, data: bytes) -> list[Delta]:
        part = _decoded(self._decode, data)
        self.prompt_tokens = part.tokens_evaluated or self.prompt_tokens
        if part.prompt_progress is not None:
            self.prompt_tokens = part.prompt_progress.total
            progress = part.prompt_progress.heard()
            return [Delta(0, "", index=part.index, slot=part.id_slot, progress=progress)] if self._progress else []
        logprobs = [item.heard(self._probs) for item in part.completion_probabilities or ()]
        finish: FinishReason | None = None
        timings = part.timings if part.stop or self._timings else None
        usage = None
        if part.stop:
            self.prompt = part.prompt or self.prompt
            finish = "length" if part.stop_type == "limit" else "stop"
            cached = part.timings.cache_n if part.timings is not None else 0
            usage = Usage(part.tokens_evaluated, part.tokens_predicted, cached)
        elif timings is not None:
            usage = timings.usage()
        return [
            Delta(
                0,
                part.content,
                index=part.index,
                finish=finish,
                usage=usage,
                logprobs=logprobs or None,
                tokens=part.tokens if self._tokens else None,
                timings=timings.heard() if timings is not None else None,
                slot=part.id_slot,
                stop_string=part.stopping_word,
            )
        ]


def _decoded(decode: Any, data: bytes) -> Any:
    try:
        chunk = decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Broken(f"{error}: {data[:200]!r}") from None
    if chunk.error is not None:
        raise Told(chunk.error)
    return chunk
