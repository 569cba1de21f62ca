"""The checks of `paddock doctor` for what prefixes cost on a running server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from paddock.cli.doctor.finding import Level
from paddock.cli.doctor.prices import WorkerPrices, check_prices, read_prices
from tests.cli.findings import worst
from tests.forking import run_command
from tests.server import Server, wait_for

_METRICS = """
# HELP paddock_prefill_token_seconds Measured time.
paddock_prefill_token_seconds{model_id="a",pool="default",replica="0"} 0.001
paddock_prefix_token_bytes{model_id="a",pool="default",replica="0"} 20000.0
paddock_prefix_copy_bytes_per_second{model_id="a",pool="default",replica="0",copy="restore"} 2e+09
paddock_prefix_copy_bytes_per_second{model_id="a",pool="default",replica="0",copy="save"} 0.0
paddock_prefill_token_seconds{model_id="b",pool="b",replica="one"} 0.0
paddock_slots{model_id="a",pool="default",replica="0"} 4.0
"""


def test_prices_are_read_from_metrics() -> None:
    assert read_prices(_METRICS) == {
        "a": WorkerPrices(0.001, 20000.0, {"restore": 2e9, "save": 0.0}),
        "b one": WorkerPrices(),
    }


@pytest.mark.parametrize(
    ("rates", "level", "says"),
    [
        ({}, "ok", "m: computing a prompt token takes 1 ms"),
        ({"save": 1e9, "restore": 2e9}, "ok", "copying it to host memory 20 µs (1 GB/s), restoring it 10 µs (2 GB/s)"),
        ({"restore": 1e6}, "warning", "restoring a prefix from host memory is slower than computing it"),
        ({"restore": 2e9, "disk_read": 1e9}, "ok", "reading it from disk 20 µs (1 GB/s)"),
        ({"restore": 2e9, "disk_read": 1e7}, "warning", "disk does not pay"),
    ],
)
def test_what_does_not_pay_is_said(rates: dict[str, float], level: Level, says: str) -> None:
    found, text = worst(check_prices("m", WorkerPrices(0.001, 20000.0, rates)))
    assert found == level
    assert says in text


def test_nothing_is_said_before_it_is_measured() -> None:
    assert list(check_prices("m", WorkerPrices())) == []


def test_a_running_server_is_asked(tmp_path: Path) -> None:
    with Server("-m", "fake:") as server:
        server.chat("a" * 100, max_tokens=3)
        (tmp_path / "c.json").write_text(json.dumps({"server": {"port": httpx.URL(server.url).port}}))

        def is_measured() -> bool:
            return any(prices.prefill for prices in read_prices(server.client.get("/metrics").text).values())

        wait_for(is_measured, 10, "the price of a token")
        done = run_command("doctor", "--config", "c.json", cwd=tmp_path)
    assert "computing a prompt token takes" in done.stdout
