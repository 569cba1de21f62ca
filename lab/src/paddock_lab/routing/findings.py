"""The results of a run: every policy compared with Paddock's, over several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from paddock_lab.report import Cell, Findings, Picture, Table
from paddock_lab.report.findings import shown
from paddock_lab.routing.simulation import SINGLE, Outcome, Setting
from paddock_lab.statistics import Estimate, median, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PADDOCK = "prefix"
_COLOURS = {
    PADDOCK: "#1f6f8b", SINGLE: "#222222", "sticky": "#4c8f4a", "first-block": "#8a5aa8", "least-busy": "#d1702a",
    "round-robin": "#b8434a", "random": "#9a9a9a", "thresholds": "#c9a227",
}  # fmt: skip

Result = tuple[Setting, Outcome]


@dataclass(frozen=True)
class Runs:
    """The outcomes of a policy with a number of replicas, by seed. The same seed means the same traffic."""

    name: str
    replicas: int
    outcomes: Mapping[int, Outcome]

    @property
    def policy(self) -> str:
        return self.name.partition(",")[0]

    @property
    def hit_rate(self) -> Estimate:
        return median([outcome.hit_rate for outcome in self.outcomes.values()])

    @property
    def slowest(self) -> Estimate:
        """The 95th percentile of the time to the first token."""
        return median([outcome.first_token_95 for outcome in self.outcomes.values()])

    def hits_against(self, other: Runs) -> Estimate:
        """This hit rate divided by the other's, seed by seed."""
        return median([self.outcomes[seed].hit_rate / other.outcomes[seed].hit_rate for seed in self._shared(other)])

    def slower_than(self, other: Runs) -> Estimate:
        """The ratio of the 95th percentiles of the first token, seed by seed. Above 1 the other is better."""
        return median(
            [self.outcomes[seed].first_token_95 / other.outcomes[seed].first_token_95 for seed in self._shared(other)]
        )

    def _shared(self, other: Runs) -> list[int]:
        return [seed for seed in self.outcomes if seed in other.outcomes]


def findings(results: Sequence[Result]) -> Findings:
    found = Findings()
    if not results:
        return found
    runs = _by_policy(results)
    rows: list[tuple[Cell, ...]] = []
    for replicas in dict.fromkeys(each.replicas for each in runs):
        pool = {each.name: each for each in runs if each.replicas == replicas}
        big, ours = pool.get(SINGLE), pool.get(PADDOCK)
        rows += [_row(each, big, ours) for each in pool.values()]
        if ours:
            found.summary += _summary(ours, big, list(pool.values()))
    columns = (
        *("replicas", "policy", "hit rate", "hit rate / one big", "first token (s)", "95 % (s)"),
        *(f"95 %, times as long as {PADDOCK}", "busiest / mean", "requests per replica", "requests"),
    )
    note = (
        "Medians over the seeds with 95 % intervals. Ratios are computed seed by seed, because every policy gets the "
        "same traffic for a seed. Hit rate: the share of cached prompt tokens. 95 %: the 95th percentile of the time "
        f"to the first token; if the ratio is above 1, {PADDOCK} is better. Busiest / mean: requests of the busiest "
        "replica divided by the mean, averaged over time."
    )
    found.tables = [Table("Policies by the number of replicas", columns, rows, note)]
    title = (
        "Cached prompt tokens, and the 95th percentile of the first token: medians and 95 % intervals over the seeds"
    )
    found.pictures = [Picture("policies", title, lambda on: _draw(on, runs))]
    found.notes.append("Replicas are simulated: their speed was measured, how they share their time is a model.")
    found.notes.append("Unfinished requests do not count, so overloaded policies look better than they are.")
    return found


def _by_policy(results: Sequence[Result]) -> list[Runs]:
    grouped: dict[tuple[int, str], dict[int, Outcome]] = {}
    for setting, outcome in results:
        grouped.setdefault((setting.replicas, _name(setting)), {})[setting.seed] = outcome
    return [Runs(name, replicas, outcomes) for (replicas, name), outcomes in grouped.items()]


def _row(runs: Runs, big: Runs | None, ours: Runs | None) -> tuple[Cell, ...]:
    outcomes = list(runs.outcomes.values())
    return (
        runs.replicas, runs.name, runs.hit_rate, runs.hits_against(big) if big else None,
        median([outcome.first_token for outcome in outcomes]), runs.slowest,
        runs.slower_than(ours) if ours and runs is not ours else None,
        round(fmean(outcome.busiest for outcome in outcomes), 2), round(fmean(outcome.load for outcome in outcomes), 2),
        sum(outcome.requests for outcome in outcomes),
    )  # fmt: skip


def _summary(ours: Runs, big: Runs | None, pool: Sequence[Runs]) -> list[str]:
    """One line for Paddock's policy, and one for the others: better, worse, or no difference shown."""
    line = f"{ours.replicas} replicas, {PADDOCK}: {_percent(ours.hit_rate.value)} of prompt tokens are cached"
    if big:
        line += f", {_percent(ours.hits_against(big).value)} of the hit rate of one replica as large as all"
    lines = [f"{line}; first token, 95th percentile: {number(ours.slowest.value)} s."]
    groups: dict[str, list[str]] = {f"better than {PADDOCK}": [], "no difference shown": [], f"{PADDOCK} is better": []}
    others = [each for each in pool if each.policy not in (SINGLE, PADDOCK)]
    for other in sorted(others, key=lambda each: each.slower_than(ours).value):
        against = other.slower_than(ours)
        if not against.enough or against.low <= 1 <= against.high:
            group = "no difference shown"
        else:
            group = f"better than {PADDOCK}" if against.value < 1 else f"{PADDOCK} is better"
        groups[group].append(f"{other.name} {shown(against)}")
    compared = "; ".join(f"{group}: {', '.join(names)}" for group, names in groups.items() if names)
    if compared:
        lines.append(f"{ours.replicas} replicas, first token (95th percentile) relative to {PADDOCK}: {compared}.")
    return lines


def _draw(figure: Figure, runs: Sequence[Runs]) -> None:
    """One panel per number of replicas, one row per policy; the best first token is at the top."""
    sizes = sorted({each.replicas for each in runs})
    figure.set_size_inches(9, 0.9 + len(sizes) * (0.5 + 0.24 * len({each.name for each in runs})))
    grid = figure.subplots(len(sizes), 2, squeeze=False, sharex="col")
    for (left, right), size in zip(grid, sizes, strict=True):
        rows = sorted((each for each in runs if each.replicas == size), key=lambda each: each.slowest.value)
        for axes, scale in ((left, 100.0), (right, 1.0)):
            for place, each in enumerate(rows):
                found = each.hit_rate if axes is left else each.slowest
                value, low, high = (scale * number for number in (found.value, found.low, found.high))
                axes.errorbar(
                    value, place, xerr=[[value - low], [high - value]], fmt="o", markersize=5, capsize=3,
                    color=_COLOURS[each.policy],
                )  # fmt: skip
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.grid(axis="x", alpha=0.25)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        left.set_yticks(range(len(rows)), [each.name for each in rows])
        for label, each in zip(left.get_yticklabels(), rows, strict=True):
            label.set_fontweight("bold" if each.name == PADDOCK else "normal")
        right.set_yticks(range(len(rows)), [""] * len(rows))
        left.set_title(f"{size} replica{'s' if size > 1 else ''}", loc="left", fontsize=10, fontweight="bold")
        left.set_xlim(0, 100)
        right.set_xscale("log")
        right.xaxis.set_major_formatter("{x:g}")
    grid[-1][0].set_xlabel("prompt tokens cached (%)")
    grid[-1][1].set_xlabel("first token, 95th percentile (s)")


def _name(setting: Setting) -> str:
    if setting.routers == 1:
        return setting.policy
    return f"{setting.policy}, {setting.routers} routers{'' if setting.stay else ', any'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
