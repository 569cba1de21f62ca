"""Decodes the event streams of llama.cpp-compatible servers to deltas: chat and completions."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec

from paddock.types import (
    CallDelta,
    ChatPrompt,
    FinishReason,
    GenerateRequest,
    PromptProgress,
    ReceiptFacts,
    TextLogprobs,
    TimeParts,
    Timings,
    Usage,
)
from paddock.wire.messages import Delta


class InvalidEvent(Exception):
    """The data is not an event of a llama.cpp-compatible server."""


class UpstreamError(Exception):
    """The server ended the stream with this error object."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.error = error


# ── shared ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Progress(msgspec.Struct):
    total: int
    cache: int = 0
    processed: int = 0
    time_ms: float = 0.0

    def decoded(self) -> PromptProgress:
        return PromptProgress(self.total, self.cache, self.processed, self.time_ms / 1000)


class _Timings(msgspec.Struct):
    cache_n: int = 0
    prompt_n: int = 0
    predicted_n: int = 0
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    # Of a Paddock, at the end.
    load_ms: float = 0.0
    queue_ms: float = 0.0
    media_ms: float = 0.0
    restore_ms: float = 0.0
    prefill_ms: float | None = None
    decode_ms: float = 0.0
    others_ms: float = 0.0

    def decoded(self) -> Timings:
        return Timings(
            self.prompt_ms / 1000, self.predicted_ms / 1000, self.draft_n, self.draft_n_accepted, self._parts()
        )

    def _parts(self) -> TimeParts | None:
        if self.prefill_ms is None:
            return None
        return TimeParts(
            load=self.load_ms / 1000,
            queue=self.queue_ms / 1000,
            media=self.media_ms / 1000,
            restore=self.restore_ms / 1000,
            prefill=self.prefill_ms / 1000,
            decode=self.decode_ms / 1000,
            others=self.others_ms / 1000,
        )

    def usage(self) -> Usage:
        """The usage so far."""
        return Usage(self.cache_n + self.prompt_n, self.predicted_n, self.cache_n)


class _TokenLogprob(msgspec.Struct):
    token: str = ""
    raw: list[int] | None = msgspec.field(name="bytes", default=None)
    id: int = -1
    logprob: float | None = None
    prob: float | None = None
    top_logprobs: list[_TokenLogprob] = []
    top_probs: list[_TokenLogprob] = []

    @property
    def piece(self) -> bytes:
        return self.token.encode() if self.raw is None else bytes(self.raw)

    @property
    def value(self) -> float:
        if self.logprob is not None:
            return self.logprob
        return math.log(self.prob) if self.prob else -math.inf

    def decoded(self, most: int) -> TextLogprobs:
        top = [(one.id, one.piece, one.value) for one in (self.top_logprobs or self.top_probs)[:most]]
        return TextLogprobs(self.id, self.piece, self.value, top)


class _Answered(msgspec.Struct):
    prompt_sha256: str
    seed: int
    tokens: list[int]
    text_sha256: str


class _Receipt(msgspec.Struct):
    """Of a Paddock: what its receipt says that only it knows."""

    identity: dict[str, Any]
    answers: list[_Answered]

    def facts(self, index: int) -> ReceiptFacts | None:
        if index >= len(self.answers):
            return None
        answer = self.answers[index]
        return ReceiptFacts(answer.prompt_sha256, answer.seed, answer.tokens, answer.text_sha256, self.identity)


class _Reader:
    """Takes the data of each event in order."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self.prompt_tokens = 0
        """0 until the server reports it."""
        self.prompt = ""
        """The prompt as the server read it, if it reports one at the end."""

    def feed(self, data: bytes) -> list[Delta]:
        """Raises `InvalidEvent` for data that is not valid, and `UpstreamError` for an error event."""
        raise NotImplementedError


# ── chat ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None

    def decoded(self) -> CallDelta:
        function = self.function or _Function()
        return CallDelta(self.index, self.id or "", function.name or "", function.arguments or "")


class _ChatDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    malformed_tool_call: bool = False


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprob] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _ChatDelta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    receipt: _Receipt | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChatReader(_Reader):
    """Holds back the last delta of a completion until the usage arrives, which comes after it."""

    def __init__(self, request: GenerateRequest) -> None:
        super().__init__(request)
        self._received: Counter[int] = Counter()
        self._calls: dict[int, dict[int, None]] = {}
        """The indices of each completion's tool calls."""
        self._ending: list[Delta] = []

    def feed(self, data: bytes) -> list[Delta]:
        chunk = _decode_event(_decode_chunk, data)
        deltas: list[Delta] = []
        if chunk.prompt_progress is not None:
            self.prompt_tokens = chunk.prompt_progress.total
            if self._request.return_progress:
                deltas.append(Delta(0, "", progress=chunk.prompt_progress.decoded()))
        for choice in chunk.choices:
            deltas += self._choice(choice, chunk.timings)
        if chunk.usage is not None and not chunk.choices:
            deltas += self._end(chunk.usage, chunk.timings, chunk.receipt)
        return deltas

    def _choice(self, choice: _Choice, timings: _Timings | None) -> list[Delta]:
        index, message, finish = choice.index, choice.delta or _ChatDelta(), choice.finish_reason
        calls = [call.decoded() for call in message.tool_calls or ()]
        self._calls.setdefault(index, {}).update(dict.fromkeys(call.index for call in calls))
        logprobs = [
            item.decoded(self._request.sampling.n_probs)
            for item in (choice.logprobs.content if choice.logprobs else None) or ()
        ]
        if finish is None and not (message.content or message.reasoning_content or calls or logprobs):
            return []
        if finish == "stop":  # then its tool calls turned out to be text
            calls += [CallDelta(number, withdrawn=True) for number in self._calls[index]]
        shown = timings if self._request.timings_per_token and finish is None else None
        delta = Delta(
            0,
            message.content or "",
            index=index,
            finish=None if finish is None else _FINISHES.get(finish, "stop"),
            reasoning=message.reasoning_content or "",
            calls=calls or None,
            malformed=message.malformed_tool_call,
            logprobs=logprobs or None,
            usage=shown.usage() if shown is not None else None,
            timings=shown.decoded() if shown is not None else None,
        )
        if finish is not None:
            self._ending.append(delta)
            return []
        self._received[index] += 1
        return [delta]

    def _end(self, usage: _Usage, timings: _Timings | None, receipt: _Receipt | None) -> list[Delta]:
        """Some servers report the usage of each completion, others the sum. Each completion gets its received tokens,
        and the last one gets the rest.
        """
        ending, self._ending = self._ending, []
        self.prompt_tokens = usage.prompt_tokens
        cached = (usage.prompt_tokens_details or _Details()).cached_tokens
        left, ended = usage.completion_tokens, []
        for number, delta in enumerate(ending, 1):
            last = number == len(ending)
            count = left if last else min(left, self._received[delta.index])
            left -= count
            reasoning = (usage.completion_tokens_details or _Details()).reasoning_tokens if last else 0
            facts = receipt.facts(delta.index) if receipt is not None else None
            own = Usage(usage.prompt_tokens, count, cached, reasoning, receipt=facts)
            decoded = timings.decoded() if timings is not None else None
            ended.append(msgspec.structs.replace(delta, usage=own, timings=decoded))
        return ended


_FINISHES: dict[str, FinishReason] = {"length": "length", "abort": "abort"}


# ── completions ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Part(msgspec.Struct):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    index: int = 0
    id_slot: int = 0
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    stop_type: str = ""
    truncated: bool = False
    tokens_cached: int = 0
    stopping_word: str = ""
    prompt: str = ""
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    completion_probabilities: list[_TokenLogprob] | None = None
    receipt: _Receipt | None = None
    error: Any = None


_decode_part = msgspec.json.Decoder(_Part).decode


class CompletionReader(_Reader):
    def feed(self, data: bytes) -> list[Delta]:
        part = _decode_event(_decode_part, data)
        self.prompt_tokens = part.tokens_evaluated or self.prompt_tokens
        if part.prompt_progress is not None:
            self.prompt_tokens = part.prompt_progress.total
            progress = part.prompt_progress.decoded()
            return (
                [Delta(0, "", index=part.index, slot=part.id_slot, progress=progress)]
                if self._request.return_progress
                else []
            )
        logprobs = [item.decoded(self._request.sampling.n_probs) for item in part.completion_probabilities or ()]
        finish: FinishReason | None = None
        timings = part.timings if part.stop or self._request.timings_per_token else None
        usage = None
        if part.stop:
            self.prompt = part.prompt or self.prompt
            finish = "length" if part.stop_type == "limit" else "stop"
            cached = part.timings.cache_n if part.timings is not None else 0
            usage = Usage(
                part.tokens_evaluated,
                part.tokens_predicted,
                cached,
                held_tokens=part.tokens_cached,
                truncated=part.truncated,
                receipt=part.receipt.facts(0) if part.receipt is not None else None,
            )
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
                tokens=part.tokens if self._request.return_tokens else None,
                timings=timings.decoded() if timings is not None else None,
                slot=part.id_slot,
                stop_string=part.stopping_word,
            )
        ]


def reader_of(request: GenerateRequest) -> _Reader:
    return ChatReader(request) if isinstance(request.prompt, ChatPrompt) else CompletionReader(request)


def _decode_event(decode: Any, data: bytes) -> Any:
    try:
        chunk = decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidEvent(f"{error}: {data[:200]!r}") from None
    if chunk.error is not None:
        raise UpstreamError(chunk.error)
    return chunk
