"""Prompts on a simulated GPU, which computes a step in passes as libllama divides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.batch import padded_sizes
from paddock.scheduling import Request, StepBudget
from paddock.scheduling.chunks import PrefillChunks
from paddock.scheduling.fairness import FairQueue
from paddock.types import Span

_UBATCH, _BATCH = 512, 2048
_PASS, _ROW = 0.0125, 0.000074
"""Seconds of a pass and of a row, as measured on an H200 with an 8B in Q8_0 (docs/lab.md)."""


def _passes(spans: Sequence[tuple[int, int]], *, unified: bool, ubatch: int = _UBATCH) -> list[int]:
    """The rows of each pass. With streams, given as their ids and rows, it has equally many of adjacent ones."""
    if unified:
        rows = sum(count for _, count in spans)
        return [min(ubatch, rows - start) for start in range(0, rows, ubatch)]
    left, passes = dict(sorted(spans)), []
    while left:
        group: list[int] = []
        for stream in left:
            if not group or stream == group[-1] + 1:
                group.append(stream)
        each = min(max(ubatch // len(group), 1), *(left[stream] for stream in group))
        passes.append(each * len(group))
        left = {stream: count - each * (stream in group) for stream, count in left.items()}
        left = {stream: count for stream, count in left.items() if count}
    return passes


@dataclass
class _Run:
    steps: list[list[tuple[int, int]]] = field(default_factory=list)
    """For each step the sequences and the tokens of their prompts."""
    passes: list[list[int]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """How long the steps with answers took."""
    firsts: dict[int, float] = field(default_factory=dict)
    """The time of the first token of each sequence."""
    seconds: float = 0.0


def _run(sizes: Sequence[int], *, unified: bool, answers: int = 0, ubatch: int = _UBATCH, batch: int = _BATCH) -> _Run:
    """Prompts of these sizes arrive together, beside so many answers. All go on generating."""
    budget = StepBudget(unified=unified, floor_seconds=0.12, stretch=16.0, pass_rows=ubatch)
    for count in (64, 200, 512, 1024):
        rows = _passes([(0, count)], unified=unified, ubatch=ubatch)
        budget.observe(answers=0, chunks=[(0, count)], seconds=sum(_PASS + _ROW * row for row in rows))
        budget.observe(answers=8, chunks=[], seconds=0.01)
    chunks = PrefillChunks(budget, FairQueue())
    running = [Request(id, [1] * 30, None, 100, computed=29, prompt_size=29, sequence=id) for id in range(answers)]
    running += [
        Request(id, [1] * size, None, 100, sequence=id, arrival=id, prompt_size=size)
        for id, size in enumerate(sizes, answers)
    ]
    run = _Run()
    while prompts := [request for request in running if not request.is_generating]:
        decodes = [request.sequence for request in running if request.is_generating]
        room = batch - len(decodes)
        share = chunks.divide(prompts, running, room=room, contended=False, decodes=len(decodes))
        spans = [(request.sequence, count) for request, count in share]
        assert 0 < sum(count for _, count in spans) <= room
        padded = _padded([*spans, *((sequence, 1) for sequence in decodes)], unified=unified)
        rows = _passes(padded, unified=unified, ubatch=ubatch)
        seconds = sum(_PASS + _ROW * row for row in rows)
        budget.observe(
            answers=len(decodes), chunks=[(request.computed, count) for request, count in share], seconds=seconds
        )
        run.steps.append(spans)
        run.passes.append(rows)
        run.seconds += seconds
        if decodes:
            run.gaps.append(seconds)
        for request, count in share:
            request.computed += count
            if not request.pending:
                request.tokens.append(0)
                run.firsts[request.sequence] = run.seconds
    return run


def _padded(rows: list[tuple[int, int]], *, unified: bool) -> list[tuple[int, int]]:
    if unified:
        return rows
    sizes = padded_sizes([Span(stream, 0, [1] * count) for stream, count in rows], capacity=_BATCH, n_ctx=32768)
    return [(stream, size) for (stream, _), size in zip(rows, sizes, strict=True)]


def test_short_prompts_in_streams_are_computed_whole_and_beside_one_another() -> None:
    run = _run([214 + 6 * (id * 5 % 8) for id in range(32)], unified=False)
    for spans in run.steps[1:]:
        ids = sorted(id for id, _ in spans)
        assert ids == list(range(ids[0], ids[-1] + 1)), "adjacent streams"
        assert all(count >= 214 for _, count in spans), "no pieces, each of which would take a pass"
    assert max(len(rows) for rows in run.passes) <= 3, "one for the answers, and two full ones"


def test_prompts_in_shared_cells_fill_whole_passes() -> None:
    run = _run([230] * 32, unified=True)
    assert all(rows[-1] == _UBATCH for rows in run.passes[3:-1])


@given(st.integers(1, 6), st.integers(2000, 20000), st.booleans())
def test_chunks_of_a_long_prompt_are_whole_passes_beside_the_answers(answers: int, size: int, unified: bool) -> None:
    run = _run([size], unified=unified, answers=answers)
    for rows in run.passes[1:-1]:
        small = [row for row in rows if row < _UBATCH]
        assert small == ([] if unified else [answers + 1]), "with streams the first token is computed with the answers"


@given(st.lists(st.integers(20, 6000), min_size=1, max_size=24), st.integers(0, 8), st.booleans())
def test_every_prompt_ends_and_answers_do_not_wait_long(sizes: list[int], answers: int, unified: bool) -> None:
    """Also where passes are not full, because prompts have very different lengths."""
    run = _run(sizes, unified=unified, answers=answers)
    done: dict[int, int] = {}
    for spans in run.steps:
        for id, count in spans:
            done[id] = done.get(id, 0) + count
    assert [done[id] for id in range(answers, answers + len(sizes))] == sizes
    assert max(run.gaps, default=0.0) < 0.3


@given(st.integers(600, 4000), st.integers(6, 40), st.sampled_from([64, 512, 2048]), st.integers(0, 3), st.booleans())
def test_a_short_prompt_does_not_wait_for_a_long_one(
    short: int, longer: int, ubatch: int, answers: int, unified: bool
) -> None:
    """In whatever parts of passes the two share the steps."""
    for batch in (448, 1792):
        alone = _run([short], unified=unified, answers=answers, ubatch=min(ubatch, batch), batch=batch).seconds
        beside = _run([short * longer, short], unified=unified, answers=answers, ubatch=min(ubatch, batch), batch=batch)
        assert beside.firsts[answers + 1] <= 3 * alone + 0.3


@given(st.integers(20, 200), st.sampled_from([16, 64, 512]), st.integers(100, 1000))
def test_a_prompt_makes_progress_beside_more_answers_than_a_pass_has_rows(answers: int, ubatch: int, size: int) -> None:
    _run([size, size], unified=True, answers=answers, ubatch=ubatch)  # every step has tokens of prompts


@given(st.lists(st.integers(150, 300), min_size=4, max_size=32), st.booleans())
def test_passes_are_better_filled_than_when_prompts_are_cut(sizes: list[int], unified: bool) -> None:
    """Compared with each prompt in a step of its own."""
    run = _run(sizes, unified=unified)
    alone = sum(
        _PASS * len(rows) + _ROW * sum(rows)
        for id, size in enumerate(sizes)
        for rows in [
            _passes(_padded([(id, size), *((other, 1) for other in range(id))], unified=unified), unified=unified)
        ]
    )
    assert run.seconds <= 1.2 * alone, "what is not adjacent takes passes of its own too"
