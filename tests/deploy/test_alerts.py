"""Alerts that must agree with the code, read without a Prometheus."""

from __future__ import annotations

import re
from pathlib import Path

from paddock import errors

ALERTS = (Path(__file__).parents[2] / "deploy/prometheus/alerts.yml").read_text("utf-8")

_NOT_ABOUT_ANSWERS = {
    *("batches_unavailable", "buffers_full", "model_loading", "not_supported", "server_stopping", "storage_full"),
    *("mcp_server_failed", "mcp_server_timeout", "mcp_server_unreachable"),  # paddock_mcp_calls_total counts these
    "too_many_connections",
}


def _codes(of: type[errors.PaddockError]) -> set[str]:
    below = {code for cls in of.__subclasses__() if cls is not errors.StartupError for code in _codes(cls)}
    return below | ({of.code} if of.status >= 500 else set())


def test_every_error_of_the_server_that_ends_an_answer_raises_the_alert() -> None:
    (watched,) = re.findall(r'outcome=~"([a-z_|]+)"', ALERTS)
    assert set(watched.split("|")) == _codes(errors.PaddockError) - _NOT_ABOUT_ANSWERS
