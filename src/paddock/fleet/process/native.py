"""Queries of native code: each runs in a process of its own, because native code may crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from paddock.fleet.process.environment import environment
from paddock.types import LibraryInfo, SandboxState

T = TypeVar("T")


class Gpu(msgspec.Struct, frozen=True):
    name: str
    free: int
    total: int
    description: str = ""


class Build(LibraryInfo, frozen=True):
    """The library that was asked, and the GPUs that it can use."""

    gpus: tuple[Gpu, ...] = ()
    failure: str = ""
    """Why the query failed."""
    illegal_instruction: bool = False
    """The process died of an instruction that this CPU does not have."""


class NativeQueryFailed(Exception):
    """The process did not answer. `status` is its exit status, if it ended."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


def ask_native(question: str, answer: type[T], *arguments: str, library: Path | None = None, within: float = 60.0) -> T:
    """Run a module of the worker that prints its answer as JSON, in a worker's environment. `library` is used instead
    of the one that workers use.

    Raises `NativeQueryFailed`.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", f"paddock.worker.{question}", *arguments], env=environment(library=library),
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=within,
        )  # fmt: skip
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=answer)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise NativeQueryFailed(str(error)) from None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    raise NativeQueryFailed(lines[-1] if lines else f"it ended with status {done.returncode}", done.returncode)


def ask_build(library: Path | None = None) -> Build:
    """Load this libllama, or the one that workers use, and run its self-test. A library that cannot be used has a
    `failure`.
    """
    try:
        return ask_native("build", Build, library=library)
    except NativeQueryFailed as error:
        is_illegal = error.status == -signal.SIGILL
        return Build(failure="it ended with SIGILL" if is_illegal else str(error), illegal_instruction=is_illegal)


def ask_sandbox() -> SandboxState:
    """The sandbox that a worker would get here."""
    try:
        return ask_native("sandbox", SandboxState)
    except NativeQueryFailed:
        return SandboxState(missing=("the sandboxed process did not answer",))
