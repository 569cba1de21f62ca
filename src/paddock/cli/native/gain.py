"""What a library compiled for this machine would use that another does not. Pure, but for the hint's `find_hint`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from paddock.cli.native import comparison
from paddock.libraries import PREBUILT, Cpu, cache_folder, find_library, this_cpu

INSTRUCTIONS: Mapping[str, str] = {
    "SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX_VNNI": "avx_vnni", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma",
    "BMI2": "bmi2", "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8", "NEON": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm", "SVE": "sve", "SME": "sme",
}  # fmt: skip
"""The names of instruction sets in ggml and in the kernel."""

PREBUILT_FEATURES: Mapping[str, Collection[str]] = {
    "x86_64": ("SSE3", "SSSE3", "AVX", "AVX2", "F16C", "FMA", "BMI2"),
    "aarch64": ("NEON",),
}
"""What the prebuilt library of the default dependency uses on Linux. A test compares it with what the library says."""


def unused(features: Collection[str], cpu_flags: Collection[str]) -> list[str]:
    """The instruction sets of the CPU that a library with these features does not use."""
    return [name for name, flag in INSTRUCTIONS.items() if flag in cpu_flags and name not in features]


def hint(
    origin: str, cpu: Cpu, measured: comparison.Comparison | None, *, has_compiler: bool, command: str
) -> str | None:
    """One line that a compiled library is or may be faster here, or None if it would not be."""
    more = unused(PREBUILT_FEATURES.get(cpu.machine, INSTRUCTIONS), cpu.features)
    if origin != PREBUILT or not more or not has_compiler or (measured is not None and not measured.is_faster):
        return None
    names = ", ".join(more)
    if measured is not None:
        return f"a library compiled for this CPU is faster here: {measured}, by {names}. `{command}` makes one"
    return f"a library compiled for this CPU may be faster, by {names}. `{command}` makes one in about fifteen minutes"


def find_hint(environment: Mapping[str, str] = os.environ) -> str | None:
    """The hint for this machine. Nothing is loaded."""
    found = find_library(environment)
    if found is None or found.origin != PREBUILT or sys.platform != "linux":
        return None
    cpu = this_cpu()
    measured = comparison.load(cache_folder(environment), cpu)
    return hint(found.origin, cpu, measured, has_compiler=_has_compiler(environment), command=build_command())


def build_command(prefix: Path = Path(sys.prefix)) -> str:
    """What people type here. In a clone `paddock` is not on PATH."""
    return "make native" if prefix.name == ".venv" and (prefix.parent / "Makefile").exists() else "paddock build"


def _has_compiler(environment: Mapping[str, str]) -> bool:
    path = environment.get("PATH", os.defpath)
    return any(shutil.which(name, path=path) for name in ("c++", "g++", "clang++"))
