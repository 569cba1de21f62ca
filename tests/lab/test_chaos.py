"""The chaos run, in small: with the model without weights, and for seconds instead of minutes."""

from __future__ import annotations

import subprocess
import sys

from tests.tiers import full

pytestmark = full


def test_chaos_for_a_while() -> None:
    command = [sys.executable, "-m", "paddock_lab.chaos", "--model", "fake:delay=0.01", "--seconds", "15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "streamed" in done.stdout
