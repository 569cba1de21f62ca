"""llama-server's `timings` and `prompt_progress`: cached, computed and generated tokens, and their speed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paddock.types import PromptProgress, TimeParts, Timings, Usage
from paddock.wire.messages import Delta


class NativeTimings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """llama-server's fields. The two of drafts are present if tokens were drafted.

    The others are Paddock's own, at the end of an answer: what its time was spent on. `total_ms` is their sum.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | msgspec.UnsetType = msgspec.UNSET
    draft_n_accepted: int | msgspec.UnsetType = msgspec.UNSET
    total_ms: float | msgspec.UnsetType = msgspec.UNSET
    load_ms: float | msgspec.UnsetType = msgspec.UNSET
    queue_ms: float | msgspec.UnsetType = msgspec.UNSET
    media_ms: float | msgspec.UnsetType = msgspec.UNSET
    restore_ms: float | msgspec.UnsetType = msgspec.UNSET
    prefill_ms: float | msgspec.UnsetType = msgspec.UNSET
    decode_ms: float | msgspec.UnsetType = msgspec.UNSET
    others_ms: float | msgspec.UnsetType = msgspec.UNSET
    overhead_ms: float | msgspec.UnsetType = msgspec.UNSET


def native_timings(timings: Timings, *, cached: int, prompt: int, predicted: int, answers: int = 1) -> NativeTimings:
    """For so many cached and computed prompt tokens and generated tokens. As in llama-server, the first token of an
    answer takes no time of its own: it comes with the prompt.
    """
    steps = max(predicted - answers, 0)
    prompt_ms, predicted_ms = 1000 * timings.prompt, 1000 * timings.generation
    return NativeTimings(
        cache_n=cached,
        prompt_n=prompt,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / prompt if prompt else 0.0,
        prompt_per_second=1000 * prompt / prompt_ms if prompt_ms else 0.0,
        predicted_n=predicted,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=predicted_ms / steps if steps else 0.0,
        predicted_per_second=1000 * steps / predicted_ms if predicted_ms else 0.0,
        draft_n=timings.drafted or msgspec.UNSET,
        draft_n_accepted=timings.accepted if timings.drafted else msgspec.UNSET,
        **({} if timings.parts is None else _milliseconds(timings.parts)),
    )


def _milliseconds(parts: TimeParts) -> dict[str, float]:
    named = {f"{name}_ms": round(1000 * seconds, 3) for name, seconds in msgspec.structs.asdict(parts).items()}
    return named | {"total_ms": round(sum(named.values()), 3)}


class NativeProgress(msgspec.Struct, kw_only=True):
    """The progress of prefill: `processed` of `total` tokens, of which `cache` were cached."""

    total: int
    cache: int
    processed: int
    time_ms: float


def native_progress(progress: PromptProgress) -> NativeProgress:
    return NativeProgress(
        total=progress.total, cache=progress.cached, processed=progress.processed, time_ms=1000 * progress.seconds
    )


def timings_of(timings: Timings | None, usage: Usage) -> NativeTimings:
    """The timings of one answer."""
    return timings_of_all([(timings, usage)])


def timings_so_far(delta: Delta, wanted: bool | None) -> NativeTimings | msgspec.UnsetType:
    """For requests with `timings_per_token`. The parts are known at the end only."""
    if wanted and (progress := delta.progress) is not None:
        computed = progress.processed - progress.cached
        return native_timings(Timings(progress.seconds), cached=progress.cached, prompt=computed, predicted=0)
    if not wanted or delta.usage is None:
        return msgspec.UNSET
    return timings_of(msgspec.structs.replace(delta.timings or Timings(), parts=None), delta.usage)


def timings_of_all(answers: Sequence[tuple[Timings | None, Usage]]) -> NativeTimings:
    """The timings of concurrent answers: the sum of their tokens, and the times of the slowest."""
    times = [timings or Timings() for timings, _ in answers]
    usages = [usage for _, usage in answers]
    return native_timings(
        Timings(
            max(time.prompt for time in times),
            max(time.generation for time in times),
            drafted=sum(time.drafted for time in times),
            accepted=sum(time.accepted for time in times),
            parts=max((time.parts for time in times if time.parts), key=lambda parts: parts.total, default=None),
        ),
        cached=sum(usage.cached_tokens for usage in usages),
        prompt=sum(usage.prompt_tokens - usage.cached_tokens for usage in usages),
        predicted=sum(usage.completion_tokens for usage in usages),
        answers=len(usages),
    )
