"""`paddock bench --probe`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from paddock_lab.bench.probes import PROBES, Measured, Result, Session, probe_summary, probe_table
from tests.lab import runs
from tests.lab.runs import raw, table
from tests.lab.stand_in import KEY
from tests.tiers import full

run = partial(runs.run, group=("bench",))


def _results(better: Any, **values: list[float]) -> list[Result]:
    return [
        Result(number, "swap", server, Measured("first token (s)", value, better))
        for server, found in values.items()
        for number, value in enumerate(found)
    ]


@pytest.mark.parametrize(
    ("better", "paddock", "peer", "ratio"),
    [("higher", 30.0, 20.0, 1.5), ("lower", 20.0, 30.0, 1.5), ("lower", 0.0, 1.0, None), (None, 2.0, 1.0, None)],
)
def test_a_ratio_above_one_means_that_the_first_server_is_better(
    better: Any, paddock: float, peer: float, ratio: float | None
) -> None:
    (row,) = probe_table(_results(better, paddock=[paddock] * 5, peer=[peer] * 5), ["paddock", "peer"]).rows
    assert row[4] is None if ratio is None else cast(Any, row[4]).value == ratio


def test_a_server_without_results_has_an_empty_cell() -> None:
    found = probe_table(_results("lower", paddock=[1.0, 2.0, 3.0]), ["paddock", "peer"])
    assert found.columns == ("probe", "measure", "paddock", "peer", "times as good as peer")
    assert cast(Any, found.rows[0][2]).value == 2.0
    assert found.rows[0][3:] == (None, None)
    assert probe_summary(found) == ["swap: first token (s): paddock 2.00 (of 3), peer -, times as good as peer -"]


def test_servers_get_the_same_words_except_for_the_first() -> None:
    first, second = (Session(cast(Any, None), 1.0, "swap 0").words(100).split() for _ in range(2))
    assert len(first) == len(second) == 100
    assert first[6:] == second[6:]
    assert first[:6] != second[:6]


@full
def test_every_probe_measures_a_server(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    (models / "llama.gguf").symlink_to(tiny_models["llama"])
    server = (
        f"{sys.executable} -m paddock serve --models-dir {models} -c 4096 -np 64 --api-key {KEY},other --port {{port}}"
    )
    probes = [flag for probe in PROBES for flag in ("--probe", probe)]
    status, output = run(
        *probes, "--server", f"tiny={server}", "--model-name", "llama", "--other-key", "other", "--rounds", "1",
        "--scale", "0.03", "--out", str(out),
    )  # fmt: skip
    assert status == 0, output
    assert "failed" not in output
    assert {record["probe"] for record in raw(out)} == set(PROBES)
    assert {row["probe"] for row in table(out)} == set(PROBES)
    assert "other" not in (out / "index.html").read_text("utf-8").split("--other-key", 1)[1][:10]


def test_fairness_needs_two_keys(tmp_path: Path) -> None:
    status, output = run("--probe", "fairness", "--out", str(tmp_path))
    assert status == 2
    assert "--other-key" in output
