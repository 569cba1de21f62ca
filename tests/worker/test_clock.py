"""The parts of an answer's time: they are never negative, do not overlap, and add up to the time that passed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.types import GenerateRequest, SamplingParams, TextPrompt, TimeParts
from paddock.worker.clock import Clock
from paddock.worker.step_times import StepTimes
from tests.tiers import examples
from tests.worker.stepped import SteppedThread

Seconds = st.floats(0, 10)
KEY = "group"


@dataclass(frozen=True)
class Step:
    own: int
    """Tokens of the request's own prompt in it; 0: it is not in it, or generates."""
    prompts: int
    """Prompt tokens of others."""
    decodes: int
    seconds: float
    pause: float
    """Before it, in which nothing is known to happen."""
    restores: float
    other_work: float
    is_other_group: bool


Steps = st.builds(
    Step, st.integers(0, 64), st.integers(0, 64), st.integers(0, 8), Seconds, Seconds, Seconds, Seconds, st.booleans()
)


@examples(200)
@given(Seconds, Seconds, Seconds, st.lists(Steps, min_size=1, max_size=12), st.lists(Steps, max_size=12))
def test_the_parts_add_up(media: float, queued: float, read: float, prefill: list[Step], decode: list[Step]) -> None:
    times, clock, now = StepTimes(), Clock(accepted=1.0), 1.0 + media + read + queued
    clock.media = media
    clock.restored(read)
    prefill[-1] = replace(prefill[-1], is_other_group=False)  # the first token is one of its own
    for number, step in enumerate([*prefill, *decode]):
        is_prefill = number < len(prefill)
        now = _run(step, times, clock, now, is_prefill=is_prefill)
        if number == len(prefill) - 1 or (not is_prefill and not step.is_other_group):
            clock.tick(now)
    parts = clock.parts()
    assert clock.newest is not None
    assert parts.total == pytest.approx(clock.newest - 1.0, abs=1e-6)
    assert all(part >= 0 for part in (parts.queue, parts.media, parts.restore, parts.prefill, parts.decode))
    assert parts.others >= -1e-9
    assert (parts.load, parts.overhead) == (0.0, 0.0), "the gateway knows these"


def _run(step: Step, times: StepTimes, clock: Clock, now: float, *, is_prefill: bool) -> float:
    begun = now + step.pause
    times.other_work(step.restores)
    is_in_it = not step.is_other_group and (is_prefill or step.own)
    if is_in_it:
        clock.begin(begun)
        clock.prefill(begun, times.group(KEY), step.restores)
        clock.restored(step.restores / 2)
    times.other_work(step.other_work)
    own = max(step.own, 1) if is_in_it else 0
    total = max(own + step.prompts + step.decodes, 1)
    clock.computed(step.seconds * own / total)
    key = "another" if step.is_other_group else KEY
    times.step(key, step.seconds, prompt_share=(own + step.prompts) / total)
    return begun + step.restores + step.other_work + step.seconds


def test_a_request_alone_has_no_others() -> None:
    times, clock = StepTimes(), Clock(accepted=0.0)
    group = times.group(KEY)
    clock.begin(2.0)
    clock.prefill(2.0, group)
    clock.computed(3.0)
    times.step(KEY, 3.0, prompt_share=1.0)
    clock.tick(5.0)
    times.step(KEY, 1.0, prompt_share=0.0)
    clock.tick(6.0)
    assert clock.parts() == TimeParts(queue=2.0, prefill=3.0, decode=1.0)


def test_the_prompts_of_others_are_told_apart() -> None:
    times, clock = StepTimes(), Clock(accepted=0.0)
    group = times.group(KEY)
    clock.begin(0.0)
    clock.prefill(0.0, group)
    clock.computed(1.0)
    times.step(KEY, 4.0, prompt_share=1.0)  # three quarters of the tokens are of others
    clock.tick(4.0)
    times.step(KEY, 5.0, prompt_share=0.8)
    clock.tick(9.0)
    times.step("deterministic requests", 2.0, prompt_share=0.0)
    times.step(KEY, 1.0, prompt_share=0.0)
    clock.tick(12.0)
    assert clock.parts() == TimeParts(prefill=1.0, others=3.0 + 4.0 + 2.0, decode=2.0)


def test_a_preempted_request_waits_for_its_slot() -> None:
    times, clock = StepTimes(), Clock(accepted=0.0)
    group = times.group(KEY)
    clock.begin(0.0)
    clock.prefill(0.0, group)
    clock.computed(1.0)
    times.step(KEY, 1.0, prompt_share=1.0)
    clock.tick(1.0)
    times.step(KEY, 7.0, prompt_share=0.5)  # it has no slot
    for _ in range(2):  # two chunks
        clock.prefill(8.0, group)
        clock.computed(1.0)
        times.step(KEY, 1.0, prompt_share=1.0)
    clock.tick(10.0)
    assert clock.parts() == TimeParts(queue=7.0, prefill=1.0, decode=2.0)


Prompts = st.lists(st.tuples(st.text("ab ", min_size=1, max_size=90), st.integers(0, 9)), min_size=1, max_size=5)


@examples(15)
@given(Prompts, st.sampled_from([60, 200]), st.booleans())
def test_the_parts_of_real_steps_add_up(prompts: list[tuple[str, int]], n_ctx: int, overlaps: bool) -> None:
    thread = SteppedThread("fake:", overlaps=overlaps, n_ctx=n_ctx, parallel=2, n_batch=32)
    for id, (text, more) in enumerate(prompts):
        request = GenerateRequest(TextPrompt(""), SamplingParams(temperature=0), 1 + more)
        thread.ask(id, text[: n_ctx // 3], request)
        thread.step()
    thread.run()
    assert len(thread.answers) == len(prompts)
    for deltas in thread.answers.values():
        timings = deltas[-1].timings
        assert timings is not None and timings.parts is not None
        parts = timings.parts
        assert parts.total >= timings.prompt + timings.generation - 1e-6
        within = parts.total - parts.queue - parts.media
        assert within <= timings.prompt + timings.generation + 1e-6
