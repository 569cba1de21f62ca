"""The CPU of this machine, and the instruction sets that it has."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

_INSTRUCTION_SETS = {
    "flags": re.compile(r"pni|ssse3|sse4_\d|popcnt|avx.*|f16c|fma|bmi[12]|amx_.*|gfni|vaes|vpclmulqdq"),
    "Features": re.compile(r"asimd.*|sve.*|sme.*|i8mm|bf16|fphp|atomics"),
}
"""The kernel's names of features that a compiler uses, of x86 and of ARM. Others come and go with versions of the
kernel.
"""


class Cpu(msgspec.Struct, frozen=True):
    machine: str
    """Such as x86_64."""
    model: str = ""
    features: tuple[str, ...] = ()
    """Instruction sets by the kernel's names; empty: unknown."""


@cache
def this_cpu() -> Cpu:
    if sys.platform == "darwin":
        return Cpu(platform.machine(), _apple_model())
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            return read_cpu(platform.machine(), lines)
    except OSError:
        return Cpu(platform.machine())


def read_cpu(machine: str, cpuinfo: Iterator[str] | list[str]) -> Cpu:
    """`cpuinfo` has a block of lines for each core. The first is read, since a big machine has hundreds."""
    fields: dict[str, str] = {}
    for line in cpuinfo:
        name, _, value = line.partition(":")
        if not name.strip():
            if fields:
                break
            continue
        fields.setdefault(name.strip(), value.strip())
    model = fields.get("model name") or " ".join(
        f"{name} {fields[name]}" for name in ("CPU implementer", "CPU part") if name in fields
    )
    features = {
        word
        for name, known in _INSTRUCTION_SETS.items()
        for word in fields.get(name, "").split()
        if known.fullmatch(word)
    }
    return Cpu(machine, model, tuple(sorted(features)))


def _apple_model() -> str:
    try:
        asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
