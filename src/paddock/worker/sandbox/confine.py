"""Applies the sandbox to this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from paddock.errors import ModelLoadFailed
from paddock.libraries import find_library, readable_paths
from paddock.types import Sandbox, SandboxState
from paddock.worker.sandbox import landlock, seccomp
from paddock.worker.sandbox.kernel import set_no_new_privs
from paddock.worker.sandbox.paths import accesses, gpu_caches


def confine_files(sandbox: Sandbox) -> SandboxState:
    """Restrict privileges and files for this thread and the threads that it starts later.

    Raises `ModelLoadFailed` if the sandbox is required and a part of it is not available.
    """
    if sandbox.mode == "off":
        return SandboxState()
    active: list[str] = []
    missing: list[str] = []
    try:
        set_no_new_privs()
        active.append("no_new_privs")
    except OSError as error:
        missing.append(f"no_new_privs: {error.strerror}")
    abi = landlock.version()
    if abi == 0:
        missing.append("landlock: not supported or not enabled by this kernel")
    elif (threads := _threads()) > 1:
        missing.append(f"landlock: the process has {threads} threads, and it would apply to one only")
    else:
        try:
            landlock.restrict(_accesses(sandbox), abi, network=sandbox.network)
            active.append("landlock")
        except OSError as error:
            missing.append(f"landlock: {error.strerror}")
    return _checked(sandbox, SandboxState(tuple(active), abi, tuple(missing)))


def confine_calls(sandbox: Sandbox, state: SandboxState) -> SandboxState:
    """Forbid the network, other programs and other processes for all threads. All libraries must be loaded before.
    Raises `ModelLoadFailed` as above.
    """
    if sandbox.mode == "off":
        return state
    try:
        seccomp.install(gpu=sandbox.gpu, network=sandbox.network)
        state = SandboxState((*state.active, "seccomp"), state.landlock_abi, state.missing)
    except OSError as error:
        missing = (*state.missing, f"seccomp: {error.strerror}")
        state = SandboxState(state.active, state.landlock_abi, missing)
    return _checked(sandbox, state)


def _checked(sandbox: Sandbox, state: SandboxState) -> SandboxState:
    if sandbox.mode == "required" and state.missing:
        raise ModelLoadFailed(
            f"the sandbox is required, but not available: {'; '.join(state.missing)}. "
            "Set model_manager.sandbox to auto, or use a kernel that supports it"
        )
    return state


def _accesses(sandbox: Sandbox) -> list[landlock.Access]:
    home = Path(os.environ.get("HOME") or "/")
    if sandbox.gpu:
        # Landlock identifies this folder by its inode, which the kernel may drop to free memory and create again.
        # An open descriptor keeps the inode while the process runs.
        os.open("/proc/self", os.O_PATH | os.O_CLOEXEC)
        for folder in gpu_caches(os.environ, home)[:1]:  # CUDA could not create its cache folder from now on
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                pass  # CUDA works without a cache
    found = find_library()
    library = readable_paths(found, home) if found is not None else []
    return accesses(sandbox, python=list(_python()), environ=os.environ, home=home, library=library)


def _python() -> Iterator[str]:
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, str(Path(__file__).parents[3]))
    yield from sys.path
    yield from _mapped()


def _mapped() -> Iterator[str]:
    """Folders of the loaded libraries: the libraries that they are linked with may be in the same folder."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").partition("/")[2] for line in maps if "/" in line}
    yield from sorted({os.path.dirname(f"/{path}") for path in paths if ".so" in path})


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))
