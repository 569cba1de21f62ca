"""Generations of one HTTP request: started together, then collected or merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import msgspec

from paddock.errors import PaddockError
from paddock.fleet import Fleet, Generation, Model
from paddock.gateway.generation.fields import GenerationFields
from paddock.types import CacheReport, CallDelta, FinishReason, GenerateRequest, TextLogprobs, Usage
from paddock.wire.messages import Delta


@dataclass(slots=True)
class Call:
    """A complete tool call."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class FinishedAnswer:
    """One complete answer."""

    last: Delta
    finish: FinishReason
    usage: Usage
    text: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TextLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TextLogprobs] = field(default_factory=list)
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, deltas: list[Delta]) -> FinishedAnswer:
        last = deltas[-1] if deltas else None
        if last is None or last.finish is None or last.usage is None:
            raise PaddockError("no finish reason was received")
        return cls(
            last=last,
            finish=last.finish,
            usage=last.usage,
            text="".join(delta.text for delta in deltas),
            tokens=[token for delta in deltas for token in delta.tokens or ()],
            logprobs=[item for delta in deltas for item in delta.logprobs or ()],
            prompt_logprobs=[item for delta in deltas for item in delta.prompt_logprobs or ()],
            reasoning="".join(delta.reasoning for delta in deltas),
            calls=_calls(part for delta in deltas for part in delta.calls or ()),
        )


def _calls(parts: Iterable[CallDelta]) -> list[Call]:
    calls: dict[int, Call] = {}
    for part in parts:
        call = calls.setdefault(part.index, Call(part.id, part.name))
        call.arguments += part.arguments
        if part.withdrawn:
            del calls[part.index]
    return list(calls.values())


async def start_all(fleet: Fleet, model: Model, requests: Sequence[GenerateRequest]) -> list[Generation]:
    """Start all generations, or none: the first error cancels the others."""
    if len(requests) == 1:
        return [await fleet.generate(model, requests[0])]
    starting = [asyncio.ensure_future(fleet.generate(model, request)) for request in requests]
    try:
        return list(await asyncio.gather(*starting))
    except BaseException:
        for task in starting:
            task.cancel()
        for outcome in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(outcome, Generation):
                outcome.close()
        raise


def one_cache_report(body: GenerationFields, generation: Generation) -> CacheReport | msgspec.UnsetType:
    """The report on the prompt, if the body asks for it, when an answer is complete."""
    return generation.cache_report or msgspec.UNSET if body.cache_report else msgspec.UNSET


def cache_reports(
    body: GenerationFields, generations: Sequence[Generation]
) -> CacheReport | list[CacheReport | None] | msgspec.UnsetType:
    """The same for several prompts: a list, unless there is only one."""
    if len(generations) == 1 or not body.cache_report:
        return one_cache_report(body, generations[0])
    return [generation.cache_report for generation in generations]


async def whole(generation: Generation) -> list[Delta]:
    """All deltas, when the generation is complete."""
    with closing(generation):
        return await generation.all_deltas()


async def collect(generation: Generation, answers: int) -> list[FinishedAnswer]:
    """The answers of one generation, when all are complete."""
    parts: list[list[Delta]] = [[] for _ in range(answers)]
    for delta in await whole(generation):
        parts[delta.index].append(delta)
    return [FinishedAnswer.of(deltas) for deltas in parts]


async def collect_all(generations: Sequence[Generation], answers: int) -> list[list[FinishedAnswer]]:
    """The same for several generations. If one fails, the others are cancelled."""
    collecting = [asyncio.ensure_future(collect(generation, answers)) for generation in generations]
    try:
        return list(await asyncio.gather(*collecting))
    finally:
        for task, generation in zip(collecting, generations, strict=True):
            task.cancel()
            generation.close()


async def merged(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Delta]]:
    """The deltas of several generations as they arrive, each with the index of its generation."""

    async def following(generation: Generation) -> Delta | None:
        return await anext(generation, None)

    waiting = {asyncio.ensure_future(following(one)): (place, one) for place, one in enumerate(generations)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place, generation = waiting.pop(task)
                if (delta := task.result()) is not None:
                    waiting[asyncio.ensure_future(following(generation))] = (place, generation)
                    yield place, delta
    finally:
        for task in waiting:
            task.cancel()
        for generation in generations:
            generation.close()
