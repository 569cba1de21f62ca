"""Checks of the machine: the installation, the CPU, GPUs, the sandbox, limits and disk space."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import stat
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paddock import __version__
from paddock.cli.common import size
from paddock.cli.doctor.finding import Finding, check_folder
from paddock.cli.native.gain import INSTRUCTIONS, build_command, unused
from paddock.fleet import has_gpu
from paddock.fleet.process.native import ask_sandbox
from paddock.libraries import install_hint, sha256_by_file
from paddock.types import SandboxMode, SandboxState

if TYPE_CHECKING:
    from paddock.config import Settings
    from paddock.fleet.process.native import Build

GpuKind = Literal["nvidia", "amd"]

DISTRIBUTION = "paddock-llm"
"""The name on the Python index. `paddock` there is another project with the same import name."""
_OTHER_DISTRIBUTION = "paddock"
_LISTED = ("xllamacpp", "llama-cpp-python", "llguidance", "uvicorn")
_NAME = re.compile(r"[A-Za-z0-9._\-]+")
_LITTLE_SPACE = 1 << 30
_FEW_OPEN_FILES = 4096

# llama.cpp is much slower without these.
_FAST = ("AVX2", "FMA", "F16C", "DOTPROD", "MATMUL_INT8")
_GPU_OPTIONS: dict[GpuKind, str] = {"nvidia": "--cuda", "amd": "--rocm"}


# ── installation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def check_installation(required: list[str], installed: dict[str, str]) -> Finding:
    """`required` is the list of the package's metadata, `installed` maps names to versions."""
    names = [match[0] for entry in required if "extra ==" not in entry and (match := _NAME.match(entry))]
    missing = [name for name in names if name not in installed]
    if missing:
        return Finding(
            "problem",
            "installation",
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            f"the environment is damaged: remove .venv and run `make serve`, or pip install {DISTRIBUTION} again",
        )
    versions = ", ".join(f"{name} {installed[name]}" for name in _LISTED if name in installed)
    python = f"Python {platform.python_version()} in {sys.prefix}"
    return Finding("ok", "installation", f"paddock {__version__} with {versions}, {python}")


def check_name(installed: set[str]) -> Finding | None:
    """`installed` has the names of distributions in this environment."""
    if _OTHER_DISTRIBUTION in installed:
        return Finding(
            "warning",
            "installation",
            f"the distribution `{_OTHER_DISTRIBUTION}` is installed: on the Python index this is another project with "
            "the same import name",
            f"pip uninstall {_OTHER_DISTRIBUTION}, then pip install {DISTRIBUTION} again",
        )
    if DISTRIBUTION not in installed:
        return Finding(
            "warning",
            "installation",
            f"`{DISTRIBUTION}` is not installed in {sys.prefix}: the code runs from its folder, and its dependencies "
            "cannot be checked",
            f"`make serve` in a clone, or pip install {DISTRIBUTION}",
        )
    return None


def examine_installation() -> Iterator[Finding]:
    finding = check_name({name for name in (DISTRIBUTION, _OTHER_DISTRIBUTION) if _version(name) is not None})
    if finding is not None:
        yield finding
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    names = [match[0] for entry in required if (match := _NAME.match(entry))]
    yield check_installation(required, {name: version for name in names if (version := _version(name)) is not None})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# ── CPU and GPU ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _build(option: str = "") -> str:
    return f"compile llama.cpp for this machine: paddock build {option}".rstrip()


def check_identity(build: Build, sha256: str) -> Finding:
    """`sha256` is that of the library's file."""
    if build.failure and not build.illegal_instruction:
        return Finding("problem", "library", build.failure, f"{install_hint()}; then restart the server")
    commit = f" (commit {build.commit})" if build.commit else ""
    facts = [f"llama.cpp {build.version}{commit} from {build.origin}: {build.path}"]
    facts += [f"SHA-256 {sha256[:16]}…"] if sha256 else []
    facts += [build.compiler] if build.compiler else []
    return Finding("ok", "library", ", ".join(facts))


def examine_build(build: Build, flags: frozenset[str]) -> Iterator[Finding]:
    if not build.illegal_instruction:
        yield check_identity(build, next(iter(sha256_by_file(Path(build.path)).values()), "") if build.path else "")
    if build.illegal_instruction or not build.failure:
        yield check_processor(build, flags)


def check_processor(build: Build, flags: frozenset[str]) -> Finding:
    """`flags` are the CPU's features according to the kernel; empty if unknown."""
    if build.illegal_instruction:
        text = "llama.cpp was built for another CPU: it crashes with an illegal instruction"
        return Finding("problem", "cpu", text, _build())
    known = {name: flag for name, flag in INSTRUCTIONS.items() if flags}
    missing = [name for name in build.features if name in known and known[name] not in flags]
    if missing:
        text = f"llama.cpp was built with {', '.join(missing)}, which this CPU does not have: it may crash"
        return Finding("problem", "cpu", text, _build())
    slow = [name for name in _FAST if name in known and known[name] in flags and name not in build.features]
    if slow:
        text = f"llama.cpp was built without {', '.join(slow)}, which this CPU has: it is slower than it could be"
        return Finding("warning", "cpu", text, _build())
    used = ", ".join(name for name in build.features if name in INSTRUCTIONS) or "no special instructions"
    if more := unused(build.features, flags):
        text = f"llama.cpp uses {used}; built for this CPU, it would use {', '.join(more)} too: {build_command()}"
        return Finding("ok", "cpu", text, _build())
    return Finding("ok", "cpu", f"llama.cpp was built for this CPU ({used})")


def check_gpu(
    build: Build, here: GpuKind | None, *, built_for_gpu: bool, wanted: bool, devices_open: bool = True
) -> Iterator[Finding]:
    """`here` is the GPU of the machine, whether or not llama.cpp can use it; `wanted`: n_gpu_layers is not 0."""
    if build.gpus:
        gpus = ", ".join(f"{gpu.name} with {size(gpu.free)} of {size(gpu.total)} free" for gpu in build.gpus)
        if wanted:
            yield Finding("ok", "gpu", gpus)
        else:
            text = f"n_gpu_layers is 0, but this machine has {gpus}"
            yield Finding("warning", "gpu", text, "set n_gpu_layers to -1 or auto")
    elif here and not built_for_gpu and wanted:
        text = f"this machine has a GPU ({here}), but llama.cpp was built without GPU support: answers are slow"
        yield Finding("warning", "gpu", text, _build(_GPU_OPTIONS[here]))
    elif here == "nvidia" and built_for_gpu and not devices_open:
        cure = "load the driver's module at boot: nvidia-modprobe -c0 -u, or nvidia-persistenced"
        yield Finding("problem", "gpu", "llama.cpp cannot use the GPU: /dev/nvidia-uvm does not exist", cure)
    elif built_for_gpu and not build.failure:
        cure = "check whether nvidia-smi or rocminfo finds it, and whether this user may use it (group render)"
        yield Finding("warning", "gpu", "llama.cpp was built with GPU support, but finds no GPU", cure)
    elif not build.failure:
        yield Finding("ok", "gpu", "answers are computed on the CPU")


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        fields = [line.partition(":") for line in cpuinfo.read_text().splitlines()]
    except OSError:
        return frozenset()
    return frozenset(next((flags for name, _, flags in fields if name.strip() in ("flags", "Features")), "").split())


def gpu_here(devices: Path = Path("/dev")) -> GpuKind | None:
    if any(devices.glob("nvidia[0-9]*")) or shutil.which("nvidia-smi"):
        return "nvidia"
    return "amd" if (devices / "kfd").exists() else None


# ── sandbox, limits, disk ────────────────────────────────────────────────────────────────────────────────────────────


def check_sandbox(mode: SandboxMode, state: SandboxState) -> Finding:
    """`state` is what this machine supports, `mode` is the setting."""
    active = ", ".join(state.active).replace("landlock", f"landlock (version {state.landlock_abi})")
    missing = "; ".join(state.missing)
    if mode == "off":
        return Finding(
            "warning",
            "sandbox",
            "model_manager.sandbox is off: a model file that takes over a worker has the server's rights",
            f"remove the setting; this machine supports {active or 'no sandbox'}",
        )
    if not missing:
        return Finding("ok", "sandbox", f"workers are confined by {active}")
    if mode == "required":
        return Finding(
            "problem",
            "sandbox",
            f"model_manager.sandbox is required, so no model can be loaded: {missing}",
            "set it to auto, or use a kernel that supports it (Landlock: Linux 5.13 or later)",
        )
    return Finding(
        "warning",
        "sandbox",
        f"workers are confined by {active or 'nothing'}; missing: {missing}",
        "use a kernel with Landlock (Linux 5.13 or later, `landlock` in its lsm= list), or a container that allows it",
    )


def check_space(folder: Path, free: int) -> Finding:
    text = f"{size(free)} are free on the disk of {folder}"
    if free < _LITTLE_SPACE:
        return Finding("warning", "disk", text, "remove unused models: saved slots and downloads need space")
    return Finding("ok", "disk", text)


def check_open_files(limit: int) -> Finding:
    """Each connection needs one open file, each worker a few. -1: no limit."""
    if 0 <= limit < _FEW_OPEN_FILES:
        return Finding(
            "warning",
            "limits",
            f"at most {limit} files can be open, which limits the server to about as many connections",
            "raise the limit of the process that starts it: LimitNOFILE=65536, as `paddock service install` does",
        )
    return Finding("ok", "limits", f"{'any number of' if limit < 0 else limit} files can be open at once")


def check_cache_folder(folder: Path) -> Finding:
    """The server creates the folder if it can."""
    what = "the folder for prefixes"
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if existing != folder and os.access(existing, os.W_OK | os.X_OK):
        return Finding("ok", "permissions", f"{what} {folder} will be created")
    found = check_folder(folder, what, "permissions", writable=True)
    if found.level == "ok" and folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        text = f"{what} {folder} is open to other users, who can see when prefixes are used"
        return Finding("warning", "permissions", text, f"chmod 700 {folder}")
    return found


def examine_machine(settings: Settings, build: Build) -> Iterator[Finding]:
    manager = settings.model_manager
    layers = [manager.n_gpu_layers, *(model.n_gpu_layers for model in manager.models.values())]
    wanted, devices_open = any(number != 0 for number in layers), os.access("/dev/nvidia-uvm", os.R_OK | os.W_OK)
    yield from check_gpu(build, gpu_here(), built_for_gpu=has_gpu(), wanted=wanted, devices_open=devices_open)
    yield check_sandbox(manager.sandbox, ask_sandbox())
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield from map(check_cache_folder, manager.cache_folders)
    for folder in (manager.models_directory, settings.server.slot_save_path, *manager.cache_folders):
        if folder is not None and folder.is_dir():
            yield check_space(folder, shutil.disk_usage(folder).free)
