"""Tries a library in a process of its own, before and after it is used: does it work, and how fast is it."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from paddock.fleet.process.native import Build, NativeQueryFailed, ask_native


class _Count(msgspec.Struct, frozen=True):
    problem: str


class Speed(msgspec.Struct, frozen=True):
    """Tokens per second."""

    prompt: float
    stream: float


class Checked(msgspec.Struct, frozen=True):
    features: list[str] = []
    """Instruction sets and other options, by ggml's names."""
    problem: str = ""


def check_library(path: Path) -> Checked:
    """`path` is the library, or its folder. The structs are checked when it is loaded; then a tiny model counts."""
    try:
        about = ask_native("build", Build, library=path)
        counted = ask_native("trial", _Count, "count", library=path)
        if about.gpus and not counted.problem:
            counted = ask_native("trial", _Count, "count", "gpu", library=path)
    except NativeQueryFailed as error:
        return Checked(problem=_explain(error))
    return Checked(list(about.features), counted.problem)


def measure_speed(path: Path, model: Path, threads: int) -> Speed:
    """Raises `NativeQueryFailed`."""
    return ask_native("trial", Speed, "speed", str(model), str(threads), library=path, within=180)


def _explain(error: NativeQueryFailed) -> str:
    if error.status is not None and error.status < 0:
        name = signal.Signals(-error.status).name
        return f"it ended with {name}" + (": the CPU does not have an instruction" if name == "SIGILL" else "")
    return str(error)
