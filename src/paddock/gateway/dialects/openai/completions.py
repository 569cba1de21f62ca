"""A text completion: prompts → generations → one body, or a stream of its parts."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from paddock.errors import InvalidRequest
from paddock.fleet import Generation
from paddock.gateway.dialects.openai import schema
from paddock.gateway.dialects.openai.chat import DONE
from paddock.gateway.dialects.openai.requests import CompletionRequest
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import FinishedAnswer, cache_reports, collect_all, merged
from paddock.gateway.generation.native import NativeCompletion, NativeCompletionPart, NativeWriter
from paddock.gateway.generation.receipts import StreamReceipt, no_receipt
from paddock.gateway.generation.timings import NativeTimings, native_progress, timings_of_all, timings_so_far
from paddock.gateway.http.framing import SSE
from paddock.types import GenerateRequest, InfillPrompt, Prompt, TextLogprobs, TextPrompt, Timings, Usage
from paddock.wire.messages import Delta

_encode = msgspec.json.Encoder().encode


def parse(body: CompletionRequest, context: RequestContext) -> list[GenerateRequest]:
    return [_request(body, context, prompt) for prompt in body.prompt]


def _request(body: CompletionRequest, context: RequestContext, prompt: Prompt) -> GenerateRequest:
    if body.suffix and isinstance(prompt, TextPrompt):
        prompt = InfillPrompt(prompt.text, body.suffix, suffix_first=bool(body.spm_infill))
    probs = -1 if body.logprobs is None else body.logprobs
    ranked = body.answers > (body.n or 1)
    if ranked and body.receipt:
        raise InvalidRequest("receipt: with best_of, answers are left out; send n alone", param="receipt")
    return body.request(
        context,
        prompt,
        max_tokens=body.max_tokens,
        n_probs=max(probs, 0) if ranked else probs,
        n=body.answers,
        echo=bool(body.echo or body.verbose),
        prompt_probs=probs if body.echo else -1,
    )


class CompletionAnswer:
    """`n` choices for each prompt."""

    def __init__(
        self,
        body: CompletionRequest,
        model: str,
        generations: Sequence[Generation],
        receipt: StreamReceipt = no_receipt,
    ) -> None:
        self._head = schema.new_head("cmpl", body, model)
        self._body = body
        self._n = body.n or 1
        self._generations = generations
        self._receipt = receipt
        self._native = NativeWriter(body, model, limit=body.max_tokens, n_probs=body.logprobs or 0)

    async def whole(self) -> schema.Completion:
        answers = await collect_all(self._generations, self._body.answers)
        choices: list[schema.CompletionChoice] = []
        for place, written in enumerate(answers):
            for answer in _best(written, self._n):
                text = self._begin(place, answer.prompt_logprobs)
                text.add(answer.text, answer.logprobs)
                choices.append(text.take(len(choices), answer.finish))
        ended = [(answer.last.timings, answer.usage) for written in answers for answer in written]
        usage = schema.usage_of([[answer.usage for answer in written] for written in answers])
        verbose = self._native.final(self._generations[0], 0, answers[0][0]) if self._body.verbose else msgspec.UNSET
        report = cache_reports(self._body, self._generations)
        return self._completion(
            choices, usage=usage, timings=timings_of_all(ended), cache_report=report, verbose=verbose
        )

    async def events(self) -> AsyncGenerator[bytes]:
        """`[DONE]` follows complete answers only."""
        usages: list[list[Usage]] = [[] for _ in self._generations]
        ended: list[tuple[Timings | None, Usage]] = []
        texts: dict[int, _Text] = {}
        usage = None if self._body.include_usage else msgspec.UNSET
        async with aclosing(merged(self._generations)) as deltas:
            async for place, delta in deltas:
                index = place * self._n + delta.index
                if delta.progress is not None:
                    progress = native_progress(delta.progress)
                    yield self._event(
                        [schema.CompletionChoice(text="", index=index)],
                        usage=usage,
                        prompt_progress=progress,
                        timings=timings_so_far(delta, self._body.timings_per_token),
                        verbose=self._verbose(place, index, delta),
                    )
                    continue
                if index not in texts:
                    texts[index] = self._begin(place, delta.prompt_logprobs or [])
                texts[index].add(delta.text, delta.logprobs or [])
                if delta.finish is not None and delta.usage is not None:
                    usages[place].append(delta.usage)
                    ended.append((delta.timings, delta.usage))
                choice = texts[index].take(index, delta.finish)
                timings, verbose = self._timings(delta, ended), self._verbose(place, index, delta)
                is_last = self._has_ended(ended) and not self._body.include_usage
                ending: dict[str, Any] = {}
                if is_last:
                    ending["cache_report"] = cache_reports(self._body, self._generations)
                    ending["receipt"] = await self._receipt()
                yield self._event([choice], usage=usage, timings=timings, verbose=verbose, **ending)
        if self._body.include_usage:
            ending = {"cache_report": cache_reports(self._body, self._generations), "receipt": await self._receipt()}
            yield self._event([], usage=schema.usage_of(usages), timings=timings_of_all(ended), **ending)
        yield DONE

    def _verbose(
        self, place: int, index: int, delta: Delta
    ) -> NativeCompletion | NativeCompletionPart | msgspec.UnsetType:
        generation = self._generations[place]
        if not self._body.verbose:
            return msgspec.UNSET
        if delta.finish is not None:
            return self._native.final(generation, index, FinishedAnswer.of([delta]))
        return self._native.part(generation, index, delta, delta.usage.completion_tokens if delta.usage else 0)

    def _timings(self, delta: Delta, ended: list[tuple[Timings | None, Usage]]) -> NativeTimings | msgspec.UnsetType:
        """In the last part of a stream, and in every part if requested."""
        if self._has_ended(ended) and not self._body.include_usage:
            return timings_of_all(ended)
        return timings_so_far(delta, self._body.timings_per_token)

    def _has_ended(self, ended: list[tuple[Timings | None, Usage]]) -> bool:
        return len(ended) == len(self._generations) * self._n

    def _begin(self, place: int, logprobs: list[TextLogprobs]) -> _Text:
        text = _Text(with_logprobs=self._body.logprobs is not None)
        if self._body.echo:
            prompt, names = self._body.prompt[place], [name for _, name in self._generations[place].prompt]
            text.echo(prompt.text if isinstance(prompt, TextPrompt) else _text(b"".join(names)), names, logprobs)
        return text

    def _event(self, choices: list[schema.CompletionChoice], **more: Any) -> bytes:
        return SSE.event(_encode(self._completion(choices, **more)))

    def _completion(self, choices: list[schema.CompletionChoice], **more: Any) -> schema.Completion:
        return schema.Completion(
            **self._head, system_fingerprint=self._generations[0].fingerprint, choices=choices, **more
        )


class _Text:
    """The text of one choice as it grows and, if requested, the logprobs of its tokens."""

    def __init__(self, *, with_logprobs: bool) -> None:
        self._with_logprobs = with_logprobs
        self._new = ""
        self._logprobs = _no_logprobs()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._length = 0

    def echo(self, text: str, names: list[bytes], logprobs: list[TextLogprobs]) -> None:
        """Start with the prompt. Its first token has no probability, because nothing precedes it."""
        self._new += text
        if self._with_logprobs:
            # What a tokenizer adds before a text, such as a space or a BOS token, is not in the text.
            self._length = len(text) - len(_text(b"".join(names)))
            self._add(names[0], None)
            for name, item in zip(names[1:], logprobs, strict=True):
                self._add(name, item)

    def add(self, text: str, items: list[TextLogprobs]) -> None:
        self._new += text
        if self._with_logprobs:
            for item in items:
                self._add(item.piece, item)

    def take(self, index: int, finish: str | None) -> schema.CompletionChoice:
        """What was added since the last call."""
        text, self._new = self._new, ""
        logprobs, self._logprobs = self._logprobs, _no_logprobs()
        return schema.CompletionChoice(
            text=text, index=index, logprobs=logprobs if logprobs.tokens else None, finish_reason=finish
        )

    def _add(self, piece: bytes, item: TextLogprobs | None) -> None:
        logprobs = self._logprobs
        logprobs.tokens.append(_readable(piece))
        logprobs.token_logprobs.append(None if item is None else item.logprob)
        logprobs.top_logprobs.append(None if item is None else _top(piece, item))
        logprobs.text_offset.append(max(0, self._length))
        self._length += len(self._decode(piece))


def _no_logprobs() -> schema.CompletionLogprobs:
    return schema.CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])


def _top(piece: bytes, item: TextLogprobs) -> dict[str, float]:
    """The likeliest tokens and the token itself. Of several with the same text, the likeliest is kept."""
    top = {_readable(other): logprob for _, other, logprob in reversed(item.top)}
    return {_readable(piece): item.logprob} | top


def _readable(piece: bytes) -> str:
    """A token as OpenAI writes it: incomplete characters as bytes, so that no two tokens look the same."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _best(answers: list[FinishedAnswer], count: int) -> list[FinishedAnswer]:
    """The answers with the highest mean log probability, the best first."""
    if count == len(answers):
        return answers

    def mean_logprob(answer: FinishedAnswer) -> float:
        return sum(item.logprob for item in answer.logprobs) / max(1, len(answer.logprobs))

    return sorted(answers, key=mean_logprob, reverse=True)[:count]
