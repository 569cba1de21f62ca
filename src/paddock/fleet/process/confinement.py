"""Asks a separate process which sandbox features this kernel supports."""

from __future__ import annotations

import subprocess

import msgspec

from paddock.fleet.process.environment import ask_native
from paddock.types import SandboxState

_ANSWER_WAIT = 60.0


def ask_sandbox() -> SandboxState:
    """The sandbox that a worker would get here."""
    try:
        done = ask_native("sandbox", within=_ANSWER_WAIT)
        return msgspec.json.decode(done.stdout, type=SandboxState)
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError):
        return SandboxState(missing=("the sandboxed process did not answer",))
