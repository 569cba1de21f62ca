"""An interpreter for the part of classic BPF that the sandbox uses."""

from __future__ import annotations

import struct

from paddock.worker.sandbox.bpf import JUMP_EQUAL, JUMP_GREATER, JUMP_SET, LOAD, RETURN, Instruction


def run(program: list[Instruction], number: int, architecture: int, arguments: tuple[int, ...] = ()) -> int:
    """The action for this system call. Fails if the kernel would refuse the program."""
    given = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, architecture, 0, *given)
    at = accumulator = 0
    while True:
        step = program[at]
        at += 1
        if step.code == LOAD:
            assert step.k % 4 == 0 and step.k < len(data)
            (accumulator,) = struct.unpack_from("<I", data, step.k)
        elif step.code == RETURN:
            return step.k
        else:
            tests = {
                JUMP_EQUAL: accumulator == step.k,
                JUMP_GREATER: accumulator > step.k,
                JUMP_SET: bool(accumulator & step.k),
            }
            at += step.jump_true if tests[step.code] else step.jump_false
