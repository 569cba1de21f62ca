"""`POST /completion` and `POST /infill`: llama-server's own completions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from paddock.fleet import Generation
from paddock.gateway.dialects.llama import schema
from paddock.gateway.dialects.llama.settings import generation_settings
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import FinishedAnswer, collect_all, merged
from paddock.gateway.generation.timings import native_progress, timings_of, timings_so_far
from paddock.gateway.http.framing import SSE
from paddock.types import GenerateRequest, InfillPrompt, Prompt, TextLogprobs
from paddock.wire.messages import Delta

_encode = msgspec.json.Encoder().encode


def parse_completion(body: schema.NativeCompletionRequest, context: RequestContext) -> list[GenerateRequest]:
    return [_request(body, context, prompt) for prompt in body.prompt]


def parse_infill(body: schema.InfillRequest, context: RequestContext) -> list[GenerateRequest]:
    prompt = InfillPrompt(
        body.input_prefix + body.prompt,
        body.input_suffix,
        [(file.filename, file.text) for file in body.input_extra],
        ("input_prefix", "input_suffix"),
    )
    return [_request(body, context, prompt)]


def _request(body: schema.NativeFields, context: RequestContext, prompt: Prompt) -> GenerateRequest:
    return body.request(
        context,
        prompt,
        max_tokens=body.limit,
        n_probs=body.n_probs or -1,
        n=body.n_cmpl or 1,
        echo=True,
        return_tokens=bool(body.return_tokens or body.stream),
        max_seconds=(body.t_max_predict_ms or 0) / 1000,
    )


class NativeAnswer:
    def __init__(self, body: schema.NativeFields, model: str, generations: Sequence[Generation]) -> None:
        self._body = body
        self._model = body.model or model
        self._n = body.n_cmpl or 1
        self._generations = generations

    async def whole(self) -> Any:
        """One object, or a list if there are several prompts or answers."""
        answers = await collect_all(self._generations, self._n)
        bodies = [
            self._final(place, index, answer)
            for place, written in enumerate(answers)
            for index, answer in enumerate(written)
        ]
        return bodies[0] if len(bodies) == 1 else bodies

    async def events(self) -> AsyncGenerator[bytes]:
        """The last event of an answer has the fields of a whole answer."""
        predicted: Counter[tuple[int, int]] = Counter()
        with_new_line: set[tuple[int, int]] = set()
        async with aclosing(merged(self._generations)) as deltas:
            async for place, delta in deltas:
                at = (place, delta.index)
                predicted[at] += len(delta.tokens or ())
                if "\n" in delta.text:
                    with_new_line.add(at)
                if delta.finish is None or delta.text or delta.tokens:
                    yield _event(self._part(place, delta, predicted[at]))
                if delta.finish is not None:
                    final = FinishedAnswer.of([delta])
                    yield _event(self._final(place, delta.index, final, has_new_line=at in with_new_line))

    def _part(self, place: int, delta: Delta, predicted: int) -> schema.NativeCompletionPart:
        return schema.NativeCompletionPart(
            index=place * self._n + delta.index,
            content=delta.text,
            tokens=delta.tokens or [],
            id_slot=delta.slot,
            tokens_predicted=predicted,
            tokens_evaluated=self._generations[place].prompt_tokens,
            timings=timings_so_far(delta, self._body.timings_per_token),
            prompt_progress=native_progress(delta.progress) if delta.progress is not None else msgspec.UNSET,
            completion_probabilities=self._probabilities(delta.logprobs),
        )

    def _final(self, place: int, index: int, answer: FinishedAnswer, *, has_new_line: bool = False) -> Any:
        """`has_new_line`: whether the text that was streamed has one."""
        generation, last, usage = self._generations[place], answer.last, answer.usage
        streamed = self._body.stream
        final = schema.NativeCompletion(
            index=place * self._n + index,
            content="" if streamed else answer.text,
            tokens=[] if streamed else answer.tokens,
            id_slot=last.slot,
            model=self._model,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            generation_settings=self._settings(generation),
            prompt=b"".join(name for _, name in generation.prompt).decode("utf-8", "replace"),
            has_new_line=has_new_line or "\n" in answer.text,
            truncated=answer.finish == "length" and usage.prompt_tokens + usage.completion_tokens >= generation.n_ctx,
            stop_type="limit" if answer.finish == "length" else "word" if last.stop_string else "eos",
            stopping_word=last.stop_string,
            tokens_cached=usage.cached_tokens,
            timings=timings_of(last.timings, usage),
            job_id=self._body.job_id or msgspec.UNSET,
            completion_probabilities=msgspec.UNSET if streamed else self._probabilities(answer.logprobs),
        )
        return _chosen(final, self._body.response_fields) if self._body.response_fields else final

    def _settings(self, generation: Generation) -> dict[str, Any]:
        body = self._body
        params = body.sampling(n_probs=body.n_probs or 0)
        return generation_settings(params, max_tokens=body.limit, adapters=generation.adapters) | {
            "logit_bias": [{"token": token, "bias": bias} for token, bias in params.logit_bias],
            "stop": body.stop or [],
            "stream": body.stream,
            "grammar": body.grammar or "",
            "json_schema": body.json_schema,
            "timings_per_token": bool(body.timings_per_token),
            "n_ctx": generation.n_ctx,
            "model": self._model,
        }

    def _probabilities(self, items: list[TextLogprobs] | None) -> list[schema.TokenProbabilities] | msgspec.UnsetType:
        after = bool(self._body.post_sampling_probs)
        return [_token_probabilities(item, after=after) for item in items or ()] or msgspec.UNSET


def _event(content: Any) -> bytes:
    return SSE.event(_encode(content))


def _token_probabilities(item: TextLogprobs, *, after: bool) -> schema.TokenProbabilities:
    top = [schema.Probability(**_probability(id, piece, logprob, after=after)) for id, piece, logprob in item.top]
    known = _probability(item.token, item.piece, item.logprob, after=after)
    return schema.TokenProbabilities(**known | {"top_probs" if after else "top_logprobs": top})


def _probability(id: int, piece: bytes, logprob: float, *, after: bool) -> dict[str, Any]:
    known = {"id": id, "token": piece.decode("utf-8", "ignore"), "bytes": list(piece)}
    return known | ({"prob": math.exp(logprob)} if after else {"logprob": logprob})


def _chosen(answer: schema.NativeCompletion, paths: list[str]) -> dict[str, Any]:
    """Only these fields; `a/b` is the field b of the object a. Missing fields are left out, as in llama-server."""
    whole = msgspec.to_builtins(answer)
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name, msgspec.UNSET) if isinstance(value, dict) else msgspec.UNSET
        if value is not msgspec.UNSET:
            found[path] = value
    return found
