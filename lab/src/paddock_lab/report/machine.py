"""The machine of a run, and the versions of its software."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress

import psutil

from paddock import __version__


def machine() -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": f"{psutil.cpu_count(logical=False) or '?'} ({psutil.cpu_count()} hardware threads)",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "GPU": _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader") or "none found",
        "system": f"{_distribution()}, {platform.platform()}",
    }


def versions() -> dict[str, str]:
    found = {"paddock": __version__, "python": sys.version.split()[0]}
    for name in ("llama-cpp-python", "xllamacpp", "numpy", "matplotlib"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _processor() -> str:
    for line in _output("lscpu").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Model name":
            return f"{value.strip()} ({platform.machine()})"
    return platform.processor() or platform.machine()


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _output(*command: str) -> str:
    """The output of a program; empty if it does not exist or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=20, env={**os.environ, "LC_ALL": "C"}
    )
    return done.stdout.strip() if done.returncode == 0 else ""
