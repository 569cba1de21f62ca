"""Landlock: restricts files, TCP ports, signals and abstract sockets for a thread and the threads that it starts.

Each version (ABI) of Landlock has more rights; those that the kernel does not support are left out.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

from paddock.worker.sandbox.kernel import call

# Calls that were added since 2019 have the same numbers on all architectures.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1


class Right(IntFlag):
    """`LANDLOCK_ACCESS_FS_*`."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


READ = Right.READ_FILE | Right.READ_DIR | Right.EXECUTE
"""With EXECUTE, because libraries are mapped as executable. seccomp forbids running programs."""
DEVICE = Right.READ_FILE | Right.READ_DIR | Right.WRITE_FILE | Right.IOCTL_DEV
WRITE = (
    Right.READ_FILE | Right.READ_DIR | Right.WRITE_FILE | Right.TRUNCATE | Right.MAKE_REG | Right.MAKE_DIR
    | Right.REMOVE_FILE | Right.REMOVE_DIR
)  # fmt: skip
_OF_FILES = Right.EXECUTE | Right.WRITE_FILE | Right.READ_FILE | Right.TRUNCATE | Right.IOCTL_DEV
_BIND, _ALL_NETWORK = 0b01, 0b11
"""`LANDLOCK_ACCESS_NET_BIND_TCP`, and with `…_CONNECT_TCP`: no rule allows them."""
_ALL_SCOPES = 0b11
"""`LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | …_SIGNAL`: both are limited to this process."""


@dataclass(frozen=True, slots=True)
class Access:
    path: Path
    rights: Right


@dataclass(frozen=True, slots=True)
class Ruleset:
    """The rights that are forbidden unless a rule allows them."""

    files: Right
    network: int
    scopes: int

    def encode(self) -> bytes:
        return struct.pack("=QQQ", self.files, self.network, self.scopes)


def ruleset_for(abi: int, *, network: bool = False) -> Ruleset:
    """All rights that this version of Landlock can forbid; `network`: but connections to other machines."""
    files = Right((1 << 13) - 1)
    for since, right in ((2, Right.REFER), (3, Right.TRUNCATE), (5, Right.IOCTL_DEV)):
        if abi >= since:
            files |= right
    return Ruleset(files, (_BIND if network else _ALL_NETWORK) if abi >= 4 else 0, _ALL_SCOPES if abi >= 6 else 0)


def rights_on(access: Access, ruleset: Ruleset, *, folder: bool) -> Right:
    """The rights of a rule: the kernel refuses unknown rights, and folder rights on a file."""
    rights = access.rights & ruleset.files
    return rights if folder else rights & _OF_FILES


def version() -> int:
    """The version of this kernel's Landlock; 0 if it is not available."""
    try:
        return call(_CREATE, 0, 0, _GET_VERSION)
    except OSError:
        return 0


def restrict(accesses: Sequence[Access], abi: int, *, network: bool = False) -> None:
    """Limit this thread, and the threads that it starts later, to these accesses. Missing paths are left out.

    Raises `OSError` if the kernel refuses. Then nothing has changed.
    """
    ruleset = ruleset_for(abi, network=network)
    encoded = ruleset.encode()
    descriptor = call(_CREATE, encoded, len(encoded) if abi >= 6 else 16 if abi >= 4 else 8, 0)
    try:
        for access in accesses:
            _allow(descriptor, access, ruleset)
        call(_RESTRICT, descriptor, 0)
    finally:
        os.close(descriptor)


def _allow(descriptor: int, access: Access, ruleset: Ruleset) -> None:
    try:
        place = os.open(access.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        folder = stat.S_ISDIR(os.fstat(place).st_mode)
        rights = rights_on(access, ruleset, folder=folder)
        if rights:
            call(_ADD_RULE, descriptor, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
