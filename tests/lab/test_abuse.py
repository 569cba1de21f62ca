"""A short run of `paddock_lab.abuse` with the fake model."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tiers import full

pytestmark = full


@pytest.mark.parametrize(
    ("families", "seconds", "outcomes"),
    [
        (
            ("bodies", "connections"),
            20,
            ("slow head:", "slow body:", "huge body:", "deep body: 400", "endless header:", "held connection:"),
        ),
        (("edge",), 20, ("stopped body:", "watcher: 429", "sent ahead: closed", "rebound page: 403")),
        (
            ("answers", "samplers", "schemas", "texts"),
            12,
            ("countless answers: 400", "giant schema: 4"),  # 400, or 429 while others are compiled
        ),
    ],
)
def test_a_short_run_has_no_violations(families: tuple[str, ...], seconds: int, outcomes: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "paddock_lab.abuse", "--seconds", str(seconds), "--ratio", "0"]
    command += ["--connections", "300", *(part for name in families for part in ("--family", name))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for outcome in outcomes:
        assert outcome in done.stdout
