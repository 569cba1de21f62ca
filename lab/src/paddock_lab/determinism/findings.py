"""The results of a run: how many answers are identical, and the first differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paddock_lab.determinism.comparing import Difference, first_difference
from paddock_lab.determinism.experiment import Condition, Observation
from paddock_lab.report import Cell, Findings, Picture, Table
from paddock_lab.report.pictures import shares

_LISTED = 25


@dataclass(frozen=True)
class Mismatch:
    """An answer that differs from the first answer to the same job."""

    observation: Observation
    reference: Observation
    difference: Difference


def mismatches(observations: Sequence[Observation]) -> list[Mismatch]:
    """Each answer is compared with the first answer to the same job."""
    references: dict[str, Observation] = {}
    found = []
    for each in observations:
        if each.transcript is None:
            continue
        reference = references.setdefault(each.job.id, each)
        assert reference.transcript is not None, "only answers become references"
        if difference := first_difference(reference.transcript, each.transcript):
            found.append(Mismatch(each, reference, difference))
    return found


def findings(observations: Sequence[Observation], different: Sequence[Mismatch], background_requests: int) -> Findings:
    if not observations:
        return Findings()
    answers = Counter(_place(each) for each in observations if each.transcript)
    differing = Counter(_place(each.observation) for each in different)
    failed = Counter(_place(each) for each in observations if each.error)
    places = dict.fromkeys(_place(each) for each in observations)
    rows: list[tuple[Cell, ...]] = [
        (str(at[0]), at[1], answers[at], answers[at] - differing[at], differing[at], failed[at]) for at in places
    ]
    bars = {f"{at[0]}  {at[1]}": (answers[at] - differing[at], differing[at]) for at in places}
    columns = ("condition", "replica", "answers", "identical", "different", "failed")
    note = "Answers are compared with the first answer to the same job."
    return Findings(
        summary=_summary(observations, different, background_requests),
        tables=[Table("Answers by condition", columns, rows, note), *([_table(different)] if different else [])],
        pictures=[Picture("identical", "Answers by condition", shares(bars, ("identical", "different")))],
        notes=_failures(observations),
    )


def _place(observation: Observation) -> tuple[Condition, str]:
    return observation.condition, observation.replica


def _summary(observations: Sequence[Observation], different: Sequence[Mismatch], background_requests: int) -> list[str]:
    answered = {each.job.id: each.job for each in observations if each.transcript}
    compared = sum(each.transcript is not None for each in observations) - len(answered)
    derived = sum(job.seed_from == "job id" for job in answered.values())
    replicas = len({each.replica for each in observations})
    conditions = "; ".join(dict.fromkeys(str(each.condition) for each in observations))
    lines = [
        f"{len(answered)} jobs, {len(answered) - derived} with chosen seeds and {derived} with seeds derived from "
        f"the job id, on {replicas} replicas: {conditions}. {background_requests} other requests were answered as load."
    ]
    if not different:
        return [f"All of {compared} comparisons are identical, byte for byte and chunk by chunk.", *lines]
    jobs = len({each.observation.job.id for each in different})
    counts = f"{len(different)} of {compared} comparisons differ, in {jobs} of {len(answered)} jobs."
    return [counts, _in_words(different[0]), *lines]


def _in_words(mismatch: Mismatch) -> str:
    each, first, found = mismatch.observation, mismatch.reference, mismatch.difference
    return (
        f"The first difference: {each.job.id} ({each.job.kind}, seed {each.job.seed}), {each.condition} on "
        f"{each.replica}, differs from {first.condition} on {first.replica} at byte {found.at} ({found.what}): "
        f"{found.reference!r} there, {found.other!r} here."
    )


def _table(different: Sequence[Mismatch]) -> Table:
    columns = ("job", "kind", "seed", "where", "byte", "reference", "here")
    rows: list[tuple[Cell, ...]] = []
    for each in different[:_LISTED]:
        job, found = each.observation.job, each.difference
        where = f"{each.observation.condition} on {each.observation.replica}"
        rows.append((job.id, job.kind, job.seed, where, found.at, found.reference, found.other))
    note = f"The first {_LISTED} of {len(different)}; raw.jsonl has every answer." if len(different) > _LISTED else ""
    return Table("Differences", columns, rows, note)


def _failures(observations: Sequence[Observation]) -> list[str]:
    failed = [each for each in observations if each.error]
    return [f"{len(failed)} requests failed, the first ({failed[0].job.id}) with: {failed[0].error}"] if failed else []
