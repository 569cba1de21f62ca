from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Job, Packer

TOKENS, INPUTS = 16, 4
sizes = st.lists(st.integers(1, 2 * TOKENS), min_size=1, max_size=9)


def _job(id: int, sizes: list[int]) -> Job:
    return Job(id, [[id] * size for size in sizes])


@given(st.lists(sizes, max_size=12), st.data())
def test_every_input_is_scheduled_once_in_order_and_every_step_fits(jobs: list[list[int]], data: st.DataObject) -> None:
    packer = Packer(tokens=TOKENS, inputs=INPUTS)
    waiting = [_job(id, sizes) for id, sizes in enumerate(jobs)]
    removed: set[int] = set()
    given_out: dict[int, list[int]] = {id: [] for id in range(len(jobs))}
    while waiting or not packer.idle:
        for _ in range(data.draw(st.integers(0, len(waiting)))):
            packer.add(waiting.pop(0))
        if data.draw(st.integers(0, 9)) == 0:
            gone = data.draw(st.integers(0, len(jobs)))  # it may be done or unknown
            packer.remove(gone)
            waiting = [job for job in waiting if job.id != gone]
            removed.add(gone)
        idle = packer.idle
        step = packer.take()
        assert bool(step) != idle
        assert len(step) <= INPUTS
        assert len(step) <= 1 or sum(len(job.inputs[index]) for job, index in step) <= TOKENS
        assert removed.isdisjoint(job.id for job, _ in step)
        for job, index in step:
            given_out[job.id].append(index)
    for id, sizes in enumerate(jobs):
        expected = list(range(len(sizes)))
        assert given_out[id] == expected[: len(given_out[id])]
        assert id in removed or given_out[id] == expected
    assert packer.queued == packer.queued_tokens == 0


@given(st.lists(st.integers(1, 2 * TOKENS), min_size=20, max_size=60), st.lists(st.integers(1, 2 * TOKENS), max_size=5))
def test_a_small_request_does_not_wait_for_a_large_one(library: list[int], others: list[int]) -> None:
    packer = Packer(tokens=TOKENS, inputs=INPUTS)
    packer.add(_job(0, library))
    for id, size in enumerate(others, 1):
        packer.add(_job(id, [size]))
    steps: Counter[int] = Counter()
    for number in range(1, len(others) + 2):
        for job, _ in packer.take():
            steps.setdefault(job.id, number)
    # In the worst case every step has room for one earlier request, or for the first input of the large one.
    assert all(steps[id] <= id + 1 for id in range(1, len(others) + 1))


@given(
    st.lists(sizes, min_size=1, max_size=12),
    st.lists(st.integers(1, TOKENS), min_size=1, max_size=6),
    st.booleans(),
)
def test_a_key_does_not_wait_for_the_backlog_of_another(
    libraries: list[list[int]], asked: list[int], late: bool
) -> None:
    """It gets as much as the other key, plus or minus one input, however many requests the other sends."""
    packer = Packer(tokens=TOKENS, inputs=INPUTS)
    for id, library in enumerate(libraries):
        packer.add(Job(id, [[id] * size for size in library], key="library"))
    if late:
        packer.take()
    packer.add(Job(99, [[99] * size for size in asked], key="reader"))
    had: Counter[str] = Counter()
    while had["reader"] < sum(asked):
        for job, index in packer.take():
            had[job.key] += len(job.inputs[index])
        if not packer.idle:
            assert had["library"] <= had["reader"] + 4 * TOKENS


def test_batch_jobs_fill_gaps_and_come_last() -> None:
    packer = Packer(tokens=TOKENS, inputs=INPUTS)
    packer.add(Job(0, [[0] * 4] * 3, batch=True))
    packer.add(Job(1, [[1] * 12] * 2))
    assert [[job.id for job, _ in packer.take()] for _ in range(3)] == [[1, 0], [1, 0], [0]]


def test_simultaneous_requests_share_a_step() -> None:
    packer = Packer(tokens=TOKENS, inputs=INPUTS)
    for id in range(INPUTS):
        packer.add(_job(id, [TOKENS // INPUTS]))
    assert [(job.id, index) for job, index in packer.take()] == [(id, 0) for id in range(INPUTS)]
    assert packer.idle


def test_a_gap_is_filled_and_the_skipped_input_is_next() -> None:
    packer = Packer(tokens=TOKENS, inputs=INPUTS)
    for id, size in enumerate([10, 12, 6]):
        packer.add(_job(id, [size]))
    assert [job.id for job, _ in packer.take()] == [0, 2]
    packer.add(_job(3, [16]))
    assert [job.id for job, _ in packer.take()] == [1]
