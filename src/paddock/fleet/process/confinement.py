"""What the kernel of this machine can keep a worker from doing, found out by one that does nothing else."""

from __future__ import annotations

import subprocess

import msgspec

from paddock.fleet.process.environment import ask_native
from paddock.types import SandboxState

_ANSWER_WAIT = 60.0


def ask_sandbox() -> SandboxState:
    """As a worker under this user, in this container, would have it."""
    try:
        done = ask_native("sandbox", within=_ANSWER_WAIT)
        return msgspec.json.decode(done.stdout, type=SandboxState)
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError):
        return SandboxState(missing=("a confined process did not answer",))
