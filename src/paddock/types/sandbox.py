"""The sandbox of a worker process."""

from __future__ import annotations

from typing import Literal

import msgspec

SandboxMode = Literal["auto", "off", "required"]


class Sandbox(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sandbox that the gateway requests before a worker loads a model."""

    mode: SandboxMode = "auto"
    """auto: the parts that the kernel supports; required: load no model if a part is missing."""
    readable: tuple[str, ...] = ()
    """The files of the model, its adapters, its draft model and its projector."""
    writable: tuple[str, ...] = ()
    """The folders for saved slots and for prefixes on disk."""
    gpu: bool = False
    """The library is built for a GPU, so the worker needs the devices and the caches of their drivers."""
    network: bool = False
    """The worker connects to RPC servers."""


class SandboxState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of the sandbox that are active in a worker."""

    active: tuple[str, ...] = ()
    """A subset of `no_new_privs`, `landlock` and `seccomp`."""
    landlock_abi: int = 0
    """The Landlock version of the kernel; 0: none."""
    missing: tuple[str, ...] = ()
    """A reason for each part that is not active."""
