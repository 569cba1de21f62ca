"""Write docs/metrics.md from the table of metrics."""

from __future__ import annotations

from pathlib import Path

from paddock.gateway.ops.metrics.families import SECTIONS, Family

_FILE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
_HEADER = """\
# Metrics

`GET /metrics` tells all of these, of all models, in Prometheus' text format. It loads no model, keeps none loaded, and
waits for no worker. `--no-metrics` (`server.metrics: false`) turns it off. (llama-server's router wants a `?model=`;
here it changes nothing.)

Everything is counted from the start of the server. Counters of a model go on where they were when its worker is
replaced, crashes or leaves; what a worker that is killed had counted in its last second is lost. `model_id` is the
model's name, `engine_version` the version of llama-cpp-python.

[deploy/prometheus](../deploy/prometheus) has a scrape configuration and alerts, [deploy/grafana](../deploy/grafana) a
dashboard. (This page is made from the code: `make docs`.)
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


if __name__ == "__main__":
    _FILE.write_text(page(), "utf-8")
