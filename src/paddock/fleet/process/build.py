"""Asks a separate process how llama.cpp was built, because native code may crash."""

from __future__ import annotations

import signal
import subprocess

import msgspec

from paddock.fleet.process.environment import ask_native

_ANSWER_WAIT = 60.0


class Gpu(msgspec.Struct, frozen=True):
    name: str
    free: int
    total: int


class Build(msgspec.Struct, frozen=True):
    features: list[str] = []
    gpus: list[Gpu] = []
    failure: str = ""
    """Why the query failed."""
    illegal_instruction: bool = False
    """The process died of an instruction that this CPU does not have."""


def ask_build() -> Build:
    try:
        done = ask_native("build", within=_ANSWER_WAIT)
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=Build)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        return Build(failure=str(error))
    if done.returncode == -signal.SIGILL:
        return Build(failure="it ended with SIGILL", illegal_instruction=True)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return Build(failure=lines[-1] if lines else f"it ended with status {done.returncode}")
