"""Tries a library in a process of its own, before and after it is used: does it work, and how fast is it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paddock.fleet.process.library_trial import try_library
from paddock.fleet.process.native import ask_build, ask_native


class Speed(msgspec.Struct, frozen=True):
    """Tokens per second."""

    prompt: float
    stream: float
    cpu_share: float = 1.0
    """CPU time of each thread per second: less than one if other programs had the cores."""


class Checked(msgspec.Struct, frozen=True):
    features: list[str] = []
    """Instruction sets and other options, by ggml's names."""
    problem: str = ""


def check_library(path: Path) -> Checked:
    """`path` is the library, or its folder. The structs are checked when it is loaded; then a tiny model counts."""
    about = ask_build(path)
    if about.failure:
        return Checked(problem=about.failure)
    tried = try_library(path)
    if about.gpus and not tried.problem:
        tried = try_library(path, on_gpu=True)
    return Checked(list(about.features), tried.refusal or tried.problem)


def measure_speed(path: Path, model: Path, threads: int) -> Speed:
    """Raises `NativeQueryFailed`."""
    return ask_native("trial", Speed, "speed", str(model), str(threads), library=path, within=180)
