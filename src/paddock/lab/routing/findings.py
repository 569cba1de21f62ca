"""What the simulated pools show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paddock.lab.report import Cell, Findings, Picture, Table
from paddock.lab.routing.simulation import BIG, Outcome, Setting
from paddock.lab.statistics import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "prefix"
_COMPARED = "round-robin"
_COLOURS = {
    OURS: "#1f6f8b", BIG: "#222222", "sticky": "#4c8f4a", "first-block": "#8a5aa8", "least-busy": "#d1702a",
    _COMPARED: "#b8434a", "random": "#9a9a9a", "thresholds": "#c9a227",
}  # fmt: skip

Seen = tuple[Setting, Outcome]


def findings(seen: Sequence[Seen]) -> Findings:
    found = Findings()
    if not seen:
        return found
    big = {setting.replicas: outcome for setting, outcome in seen if setting.policy == BIG}
    rows: list[tuple[Cell, ...]] = []
    for setting, outcome in seen:
        best = big.get(setting.replicas)
        rows.append(
            (
                setting.replicas, _name(setting), round(outcome.hit_rate, 3),
                round(outcome.hit_rate / best.hit_rate, 3) if best else None,
                outcome.first_token, outcome.first_token_95, round(outcome.busiest, 2), round(outcome.load, 2),
                outcome.requests,
            )
        )  # fmt: skip
    for replicas in dict.fromkeys(setting.replicas for setting, _ in seen):
        found.summary += _sentence(replicas, [each for each in seen if each[0].replicas == replicas])
    columns = (
        *("replicas", "policy", "hit rate", "of one big one's", "first token (s)", "95 % (s)"),
        *("busiest / mean", "requests at a replica", "requests"),
    )
    note = "Hit rate: prompt tokens that need not be read. Busiest / mean: of the requests at a replica, at any moment."
    found.tables = [Table("Policies by the number of replicas", columns, rows, note)]
    found.pictures = [
        Picture(
            "policies", "Cached prompt tokens, and how long the slowest twentieth waits", lambda on: _draw(on, seen)
        )
    ]
    found.notes.append("Replicas are simulated: how fast they are was measured, how they share their time is a model.")
    return found


def _sentence(replicas: int, seen: Sequence[Seen]) -> list[str]:
    by_name = {_name(setting): outcome for setting, outcome in seen}
    if OURS not in by_name or BIG not in by_name:
        return []
    ours, best = by_name[OURS], by_name[BIG]
    said = f"{replicas} replicas: {_percent(ours.hit_rate)} of prompt tokens are cached with {OURS}, which is "
    said += f"{_percent(ours.hit_rate / best.hit_rate)} of what one as large as all would reach"
    if other := by_name.get(_COMPARED):
        said += f"; with {_COMPARED} {_percent(other.hit_rate)}, {_percent(other.hit_rate / best.hit_rate)} of it"
    return [f"{said}. First token, 95 %: {number(ours.first_token_95)} s."]


def _draw(figure: Figure, seen: Sequence[Seen]) -> None:
    from matplotlib.ticker import NullFormatter

    left, right = figure.subplots(1, 2)
    sizes = sorted({setting.replicas for setting, _ in seen})
    for name in dict.fromkeys(_name(setting) for setting, _ in seen):
        points = {setting.replicas: outcome for setting, outcome in seen if _name(setting) == name}
        policy, _, routers = name.partition(", ")
        for axes, values in (
            (left, [100 * points[size].hit_rate for size in sorted(points)]),
            (right, [points[size].first_token_95 for size in sorted(points)]),
        ):
            axes.plot(
                sorted(points), values, marker="o", markersize=4, linewidth=2 if policy == OURS else 1, label=name,
                linestyle=":" if routers.endswith("any") else "--" if routers else "-", color=_COLOURS[policy],
            )  # fmt: skip
    left.set_ylabel("prompt tokens cached (%)")
    left.set_ylim(0, 100)
    right.set_ylabel("first token, 95th percentile (s)")
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(count) for count in sizes])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("replicas")
        axes.grid(axis="y", alpha=0.25)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)


def _name(setting: Setting) -> str:
    if setting.routers == 1:
        return setting.policy
    return f"{setting.policy}, {setting.routers} routers{'' if setting.stay else ', any'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
