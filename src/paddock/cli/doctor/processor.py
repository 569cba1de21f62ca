"""Was llama.cpp built for this CPU, and for the GPU that is here?"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paddock.cli.doctor.finding import Finding, size

if TYPE_CHECKING:
    from paddock.fleet.process.build import Build

GpuKind = Literal["nvidia", "amd"]

# ggml's names for sets of instructions, and the kernel's.
_INSTRUCTIONS = {
    "SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX_VNNI": "avx_vnni", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma",
    "BMI2": "bmi2", "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8", "NEON": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm", "SVE": "sve", "SME": "sme",
}  # fmt: skip
# Those without which it is slower by far.
_FAST = ("AVX2", "FMA", "F16C", "DOTPROD", "MATMUL_INT8")
_FLAGS: dict[GpuKind, str] = {"nvidia": "-DGGML_CUDA=on", "amd": "-DGGML_HIP=on"}


def reinstall(flags: str) -> str:
    return (
        f'CMAKE_ARGS="{flags}" {sys.executable} -m pip install llama-cpp-python --force-reinstall --no-cache-dir, '
        "then restart the server"
    )


def check_processor(build: Build, flags: frozenset[str]) -> Finding:
    """`flags` are what the kernel says that the CPU can do; empty where it says nothing."""
    about = "cpu"
    if build.illegal_instruction:
        return Finding(
            "problem",
            about,
            "llama.cpp was built for another CPU: it dies of an instruction that this one does not have",
            reinstall("-DGGML_NATIVE=on"),
        )
    if build.failure:
        return Finding(
            "problem",
            about,
            f"llama.cpp cannot be loaded: {build.failure}",
            "install it again: pip install llama-cpp-python --force-reinstall --no-cache-dir",
        )
    known = {name: flag for name, flag in _INSTRUCTIONS.items() if flags}
    missing = [name for name in build.features if name in known and known[name] not in flags]
    if missing:
        return Finding(
            "problem",
            about,
            f"llama.cpp was built with {', '.join(missing)}, which this CPU has not: "
            "it may end with an illegal instruction",
            reinstall("-DGGML_NATIVE=on"),
        )
    unused = [name for name in _FAST if name in known and known[name] in flags and name not in build.features]
    if unused:
        return Finding(
            "warning",
            about,
            f"llama.cpp was built without {', '.join(unused)}, which this CPU has: it is slower than it could be",
            reinstall("-DGGML_NATIVE=on"),
        )
    used = [name for name in build.features if name in _INSTRUCTIONS]
    return Finding(
        "ok", about, f"llama.cpp was built for what this CPU can do ({', '.join(used) or 'nothing special'})"
    )


def check_gpu(
    build: Build, here: GpuKind | None, *, built_for_gpu: bool, wanted: bool, devices_open: bool = True
) -> Iterator[Finding]:
    """`here` is a GPU of the machine, whether llama.cpp can use it or not; `wanted`: some layers are to be on one."""
    about = "gpu"
    if build.gpus:
        told = ", ".join(f"{gpu.name} with {size(gpu.free)} of {size(gpu.total)} free" for gpu in build.gpus)
        if wanted:
            yield Finding("ok", about, told)
        else:
            yield Finding("warning", about, f"n_gpu_layers is 0, and there is {told}", "set n_gpu_layers to -1 or auto")
    elif here and not built_for_gpu and wanted:
        yield Finding(
            "warning",
            about,
            f"there is a GPU ({here}), but llama.cpp was built for the CPU alone: answers are slow",
            reinstall(_FLAGS[here]),
        )
    elif here == "nvidia" and built_for_gpu and not devices_open:
        yield Finding(
            "problem",
            about,
            "llama.cpp cannot use the GPU: there is no /dev/nvidia-uvm",
            "load the driver's module when the machine starts: nvidia-modprobe -c0 -u, or nvidia-persistenced",
        )
    elif built_for_gpu and not build.failure:
        yield Finding(
            "warning",
            about,
            "llama.cpp was built for a GPU, but finds none",
            "see whether nvidia-smi or rocminfo finds it, and whether this user may use it (group render)",
        )
    elif not build.failure:
        yield Finding("ok", about, "answers are computed on the CPU")


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    said = (line.partition(":") for line in lines)
    return frozenset(next((flags for name, _, flags in said if name.strip() in ("flags", "Features")), "").split())


def gpu_here(devices: Path = Path("/dev")) -> GpuKind | None:
    if any(devices.glob("nvidia[0-9]*")) or shutil.which("nvidia-smi"):
        return "nvidia"
    return "amd" if (devices / "kfd").exists() else None


def nvidia_open(devices: Path = Path("/dev")) -> bool:
    return os.access(devices / "nvidia-uvm", os.R_OK | os.W_OK)
