"""The abuse run, in small: with the model without weights, and for seconds instead of minutes."""

from __future__ import annotations

import subprocess
import sys


def test_abuse_for_a_while() -> None:
    command = [sys.executable, "-m", "paddock.lab.abuse", "--seconds", "20", "--connections", "300", "--ratio", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for refused in ("slow head: 408", "slow body: 408", "huge body: 413", "deep body: 400", "endless header: 431"):
        assert refused in done.stdout
