"""What a worker process is allowed to do."""

from __future__ import annotations

from typing import Literal

import msgspec

SandboxMode = Literal["auto", "off", "required"]


class Sandbox(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the gateway asks of a worker before it opens a model."""

    mode: SandboxMode = "auto"
    """auto: as much as the kernel supports; required: no model is loaded without all of it."""
    readable: tuple[str, ...] = ()
    """The files of the model, its adapters and its draft model."""
    writable: tuple[str, ...] = ()
    """Folders: the one that slots are saved to."""
    gpu: bool = False
    """The library is built for a GPU, so the worker needs the devices and the caches of their drivers."""


class SandboxState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is active in a worker."""

    active: tuple[str, ...] = ()
    """Of `no_new_privs`, `landlock` and `seccomp`."""
    landlock_abi: int = 0
    """The version of Landlock that the kernel has; 0: none."""
    missing: tuple[str, ...] = ()
    """Why the rest is not active, one reason each."""
