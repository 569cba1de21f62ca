"""A short run of `paddock_lab.chaos` with the fake model."""

from __future__ import annotations

import subprocess
import sys

from tests.tiers import full

pytestmark = full


def test_a_short_run_has_no_violations() -> None:
    command = [sys.executable, "-m", "paddock_lab.chaos", "--model", "fake:delay=0.01", "--seconds", "15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "streamed" in done.stdout
