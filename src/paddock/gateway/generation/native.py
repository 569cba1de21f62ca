"""llama-server's own completions: the answers of `/completion`, which OpenAI's API has as `__verbose` if asked to."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from paddock.fleet import Generation
from paddock.gateway.generation.fields import GenerationFields
from paddock.gateway.generation.generations import FinishedAnswer, one_cache_report
from paddock.gateway.generation.settings import generation_settings
from paddock.gateway.generation.timings import (
    NativeProgress,
    NativeTimings,
    native_progress,
    timings_of,
    timings_so_far,
)
from paddock.receipts import Receipt
from paddock.types import CacheReport, TextLogprobs
from paddock.wire.messages import Delta


class Probability(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A token and its log probability, or its probability after sampling if that was requested."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | msgspec.UnsetType = msgspec.UNSET
    prob: float | msgspec.UnsetType = msgspec.UNSET


class TokenProbabilities(Probability, kw_only=True):
    top_logprobs: list[Probability] | msgspec.UnsetType = msgspec.UNSET
    top_probs: list[Probability] | msgspec.UnsetType = msgspec.UNSET


class _Native(msgspec.Struct, kw_only=True):
    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[TokenProbabilities] | msgspec.UnsetType = msgspec.UNSET


class NativeCompletionPart(_Native, kw_only=True):
    """One event of a stream."""

    stop: bool = False
    timings: NativeTimings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: NativeProgress | msgspec.UnsetType = msgspec.UNSET


class NativeCompletion(_Native, kw_only=True):
    stop: bool = True
    model: str
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    """The tokens in the context at the end, as in llama-server."""
    timings: NativeTimings
    job_id: str | msgspec.UnsetType = msgspec.UNSET
    cache_report: CacheReport | msgspec.UnsetType = msgspec.UNSET
    receipt: Receipt | msgspec.UnsetType = msgspec.UNSET


class NativeWriter:
    """Writes the answers to one request. `limit` and `n_probs` are those of the request, by any name."""

    def __init__(self, body: GenerationFields, model: str, *, limit: int | None, n_probs: int) -> None:
        self._body = body
        self._model = model
        self._limit = limit
        self._n_probs = n_probs

    def part(self, generation: Generation, index: int, delta: Delta, predicted: int) -> NativeCompletionPart:
        """`predicted`: the number of tokens so far."""
        return NativeCompletionPart(
            index=index,
            content=delta.text,
            tokens=delta.tokens or [],
            id_slot=delta.slot,
            tokens_predicted=predicted,
            tokens_evaluated=generation.prompt_tokens,
            timings=timings_so_far(delta, self._body.timings_per_token),
            prompt_progress=native_progress(delta.progress) if delta.progress is not None else msgspec.UNSET,
            completion_probabilities=self._probabilities(delta.logprobs),
        )

    def final(
        self, generation: Generation, index: int, answer: FinishedAnswer, *, has_new_line: bool = False
    ) -> NativeCompletion:
        """`has_new_line`: whether the text that was streamed has one."""
        last, usage = answer.last, answer.usage
        streamed = self._body.stream
        return NativeCompletion(
            index=index,
            content="" if streamed else answer.text,
            tokens=[] if streamed else answer.tokens,
            id_slot=last.slot,
            model=self._model,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            generation_settings=self._settings(generation),
            prompt=b"".join(name for _, name in generation.prompt).decode("utf-8", "replace"),
            has_new_line=has_new_line or "\n" in answer.text,
            truncated=usage.truncated,
            stop_type="limit" if answer.finish == "length" else "word" if last.stop_string else "eos",
            stopping_word=last.stop_string,
            tokens_cached=usage.held_tokens,
            timings=timings_of(last.timings, usage),
            job_id=self._body.job_id or msgspec.UNSET,
            cache_report=one_cache_report(self._body, generation),
            completion_probabilities=msgspec.UNSET if streamed else self._probabilities(answer.logprobs),
        )

    def _settings(self, generation: Generation) -> dict[str, Any]:
        body = self._body
        params = body.sampling(n_probs=max(self._n_probs, 0))
        return generation_settings(params, max_tokens=self._limit, adapters=generation.adapters) | {
            "logit_bias": [{"token": token, "bias": bias} for token, bias in params.logit_bias],
            "stop": body.stop_strings,
            "n_keep": body.n_keep or 0,
            "n_discard": body.n_discard or 0,
            "stream": body.stream,
            "grammar": body.grammar or "",
            "json_schema": body.json_schema,
            "timings_per_token": bool(body.timings_per_token),
            "n_ctx": generation.n_ctx,
            "model": self._model,
        }

    def _probabilities(self, items: list[TextLogprobs] | None) -> list[TokenProbabilities] | msgspec.UnsetType:
        after = bool(self._body.post_sampling_probs)
        return [_token_probabilities(item, after=after) for item in items or ()] or msgspec.UNSET


def _token_probabilities(item: TextLogprobs, *, after: bool) -> TokenProbabilities:
    top = [Probability(**_probability(id, piece, logprob, after=after)) for id, piece, logprob in item.top]
    known = _probability(item.token, item.piece, item.logprob, after=after)
    return TokenProbabilities(**known | {"top_probs" if after else "top_logprobs": top})


def _probability(id: int, piece: bytes, logprob: float, *, after: bool) -> dict[str, Any]:
    known = {"id": id, "token": piece.decode("utf-8", "ignore"), "bytes": list(piece)}
    return known | ({"prob": math.exp(logprob)} if after else {"logprob": logprob})
