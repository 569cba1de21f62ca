"""An assembler for classic BPF, the language of seccomp filters. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

LOAD, JUMP_EQUAL, JUMP_GREATER, JUMP_SET, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
"""`BPF_LD|W|ABS`, `BPF_JMP|JEQ|K`, `…|JGT|K`, `…|JSET|K`, `BPF_RET|K`."""
_MAX_JUMP = 255


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of the kernel's `sock_filter`."""

    code: int
    k: int
    jump_true: int = 0
    jump_false: int = 0

    def encode(self) -> bytes:
        return struct.pack("=HBBI", self.code, self.jump_true, self.jump_false, self.k)


@dataclass(frozen=True, slots=True)
class Jump:
    """Compares the accumulator with `k`. An empty label means the next line."""

    code: int
    k: int
    then: str = ""
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    name: str


Line = Instruction | Jump | Label


def assemble(lines: Sequence[Line]) -> list[Instruction]:
    """Replace labels by distances. Raises `ValueError` for an unknown, too distant or earlier label."""
    places: dict[str, int] = {}
    count = 0
    for line in lines:
        if isinstance(line, Label):
            places[line.name] = count
        else:
            count += 1
    program: list[Instruction] = []
    for line in lines:
        if isinstance(line, Instruction):
            program.append(line)
        elif isinstance(line, Jump):
            at = len(program) + 1
            program.append(
                Instruction(line.code, line.k, _distance(line.then, at, places), _distance(line.otherwise, at, places))
            )
    return program


def _distance(label: str, at: int, places: dict[str, int]) -> int:
    if not label:
        return 0
    if label not in places:
        raise ValueError(f"unknown label {label!r}")
    distance = places[label] - at
    if not 0 <= distance <= _MAX_JUMP:
        raise ValueError(f"the label {label!r} is {distance} instructions away; the limit is 0 to {_MAX_JUMP}")
    return distance
