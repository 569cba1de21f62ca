"""docs/reference/metrics.md: every metric, from the table of the code."""

from __future__ import annotations

from paddock.gateway.ops.metrics.families import SECTIONS, Family

_HEADER = """\
# Metrics

`GET /metrics` reports these metrics of all models in the Prometheus text format. It loads no model, resets no idle
timer and waits for no worker. `--no-metrics` (`server.metrics: false`) disables it. llama-server's router needs a
`?model=`; here the parameter has no effect.

Counters start at zero when the server starts. The counters of a model continue when its worker is replaced, crashes or
is unloaded; a killed worker loses what it counted in its last second. `model_id` is the model's name, `engine_version`
is the version of the package with libllama, or `unknown`.

[deploy/prometheus](../../deploy/prometheus) has a scrape configuration and alerts,
[deploy/grafana](../../deploy/grafana) has a dashboard. (This page is generated from the code: `make docs`.)
"""


def page() -> str:
    parts = [_HEADER]
    for section in SECTIONS:
        rows = "".join(map(_row, section.families))
        parts.append(
            f"\n## {section.title}\n\n{section.about}\n\n| name | type | labels | |\n|---|---|---|---|\n{rows}"
        )
    return "".join(parts)


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |\n"
