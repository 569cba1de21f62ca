"""What the answers of a run show: how many are the same, and where the first ones part."""

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
class Parting:
    """An answer that is not the one that was heard first."""

    seen: Observation
    reference: Observation
    difference: Difference


def partings(observations: Sequence[Observation]) -> list[Parting]:
    """Each answer is compared with the first that was heard to the same job."""
    references: dict[str, Observation] = {}
    found = []
    for seen in observations:
        if seen.heard is None:
            continue
        reference = references.setdefault(seen.job.id, seen)
        assert reference.heard is not None, "only answers become references"
        if difference := first_difference(reference.heard, seen.heard):
            found.append(Parting(seen, reference, difference))
    return found


def findings(observations: Sequence[Observation], different: Sequence[Parting], disturbances: int) -> Findings:
    if not observations:
        return Findings()
    answers = Counter(_place(seen) for seen in observations if seen.heard)
    parted = Counter(_place(each.seen) for each in different)
    failed = Counter(_place(seen) for seen in observations if seen.error)
    places = dict.fromkeys(_place(seen) for seen in observations)
    rows: list[tuple[Cell, ...]] = [
        (str(at[0]), at[1], answers[at], answers[at] - parted[at], parted[at], failed[at]) for at in places
    ]
    bars = {f"{at[0]}  {at[1]}": (answers[at] - parted[at], parted[at]) for at in places}
    columns = ("condition", "replica", "answers", "identical", "different", "failed")
    note = "The first answer to a job is what its others are compared with."
    return Findings(
        summary=_summary(observations, different, disturbances),
        tables=[Table("Answers by condition", columns, rows, note), *([_table(different)] if different else [])],
        pictures=[Picture("identical", "Answers by condition", shares(bars, ("identical", "different")))],
        notes=_failures(observations),
    )


def _place(seen: Observation) -> tuple[Condition, str]:
    return seen.condition, seen.replica


def _summary(observations: Sequence[Observation], different: Sequence[Parting], disturbances: int) -> list[str]:
    heard = {seen.job.id: seen.job for seen in observations if seen.heard}
    compared = sum(seen.heard is not None for seen in observations) - len(heard)
    derived = sum(job.seed_from == "job id" for job in heard.values())
    replicas = len({seen.replica for seen in observations})
    conditions = "; ".join(dict.fromkeys(str(seen.condition) for seen in observations))
    lines = [
        f"{len(heard)} jobs, {len(heard) - derived} with chosen seeds and {derived} with seeds made from the job's id, "
        f"on {replicas} replicas: {conditions}. Beside those under load, {disturbances} other requests were answered."
    ]
    if not different:
        return [f"All of {compared} comparisons are identical, byte for byte and piece by piece.", *lines]
    jobs = len({each.seen.job.id for each in different})
    counts = f"{len(different)} of {compared} comparisons differ, in {jobs} of {len(heard)} jobs."
    return [counts, _in_words(different[0]), *lines]


def _in_words(each: Parting) -> str:
    seen, first, found = each.seen, each.reference, each.difference
    return (
        f"The first difference: {seen.job.id} ({seen.job.kind}, seed {seen.job.seed}), {seen.condition} on "
        f"{seen.replica}, parts from {first.condition} on {first.replica} at byte {found.at} ({found.what}): "
        f"{found.reference!r} there, {found.other!r} here."
    )


def _table(different: Sequence[Parting]) -> Table:
    columns = ("job", "kind", "seed", "where", "byte", "reference", "here")
    rows: list[tuple[Cell, ...]] = []
    for each in different[:_LISTED]:
        job, found = each.seen.job, each.difference
        where = f"{each.seen.condition} on {each.seen.replica}"
        rows.append((job.id, job.kind, job.seed, where, found.at, found.reference, found.other))
    note = f"The first {_LISTED} of {len(different)}; raw.jsonl has every answer." if len(different) > _LISTED else ""
    return Table("Where answers part", columns, rows, note)


def _failures(observations: Sequence[Observation]) -> list[str]:
    failed = [seen for seen in observations if seen.error]
    return [f"{len(failed)} requests failed, the first ({failed[0].job.id}) with: {failed[0].error}"] if failed else []
