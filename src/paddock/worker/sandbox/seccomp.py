"""Installs the seccomp filter for all threads of this process."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from paddock.worker.sandbox.bpf import Instruction
from paddock.worker.sandbox.calls import MACHINES
from paddock.worker.sandbox.filter import program
from paddock.worker.sandbox.kernel import call

_SET_MODE_FILTER = 1
_TSYNC = 1


def install(*, gpu: bool, network: bool) -> None:
    """Raises `OSError` if the kernel refuses or the architecture is not supported."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(0, f"{platform.machine()} is not supported, only {', '.join(MACHINES)}")
    # The buffer must live until the call returns, because `sock_fprog` has its address.
    encoded = encode(program(machine, pid=os.getpid(), gpu=gpu, network=network))
    buffer = ctypes.create_string_buffer(encoded, len(encoded))
    header = struct.pack("=H6xQ", len(encoded) // 8, ctypes.addressof(buffer))
    other = call(machine.seccomp, _SET_MODE_FILTER, _TSYNC, header)
    if other:
        raise OSError(0, f"thread {other} has a filter of its own")


def encode(instructions: list[Instruction]) -> bytes:
    return b"".join(instruction.encode() for instruction in instructions)
