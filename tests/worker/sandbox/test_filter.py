from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.worker.sandbox.bpf import JUMP_EQUAL, RETURN, Instruction, Jump, Label, Line, assemble
from paddock.worker.sandbox.calls import LAST_KNOWN, MACHINES, Machine
from paddock.worker.sandbox.filter import ALLOW, ERRNO, KILL, OWN, REFUSED, SOCKETS, program
from tests.worker.sandbox.interpreter import run

PID = 4711
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
gpus = pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])


def expected(machine: Machine, number: int, first: int, *, gpu: bool, network: bool) -> int:
    """The rules, written in another way."""
    names = {number: name for name, number in machine.numbers.items()}
    name = names.get(number, "")
    if number > LAST_KNOWN or name == "clone3":
        return ENOSYS
    if network and name in ("socket", "connect"):
        return ALLOW
    if name in REFUSED or (name in SOCKETS and not gpu):
        return EPERM
    if name == "clone":
        return ALLOW if first & 0x10000 else EPERM
    if name == "socket":
        return ALLOW if first == 1 else EPERM
    if name in OWN:
        return ALLOW if first == PID else EPERM
    return ALLOW


@machines
@gpus
@given(data=st.data(), network=st.booleans())
def test_the_filter_follows_the_rules(machine: Machine, gpu: bool, data: st.DataObject, network: bool) -> None:
    number = data.draw(
        st.integers(0, 600) | st.integers(0, 2**32 - 1) | st.sampled_from(list(machine.numbers.values()))
    )
    first = data.draw(st.integers(0, 2**32 - 1) | st.sampled_from([1, 2, 10, PID, 0x10000, 0x3D0F00]))
    filtering = program(machine, pid=PID, gpu=gpu, network=network)
    wanted = expected(machine, number, first, gpu=gpu, network=network)
    assert run(filtering, number, machine.audit, (first,)) == wanted


@machines
@gpus
def test_calls_of_another_architecture_end_the_process(machine: Machine, gpu: bool) -> None:
    """Otherwise the number of execve in 32-bit programs (11 on x86) would be that of a harmless call."""
    others = {0x40000003, 0x40000028, *(other.audit for other in MACHINES.values())} - {machine.audit}
    filtering = program(machine, pid=PID, gpu=gpu)
    assert {run(filtering, 11, other) for other in others} == {KILL}


@machines
def test_every_path_ends_within_the_program(machine: Machine) -> None:
    for gpu in (False, True):
        filtering = program(machine, pid=PID, gpu=gpu)
        assert len(filtering) <= 4096
        assert filtering[-1].code == RETURN
        for at, step in enumerate(filtering):
            if step.code != RETURN:
                assert at + 1 + max(step.jump_true, step.jump_false) < len(filtering)


@machines
@gpus
def test_calls_of_python_and_openmp_are_allowed(machine: Machine, gpu: bool) -> None:
    """openat, mmap, futex, sched_setaffinity, exit_group, madvise, recvfrom, sendto: by their numbers."""
    needed = {
        "x86_64": [257, 9, 202, 203, 231, 28, 45, 44, 1, 0, 16],
        "aarch64": [56, 222, 98, 122, 94, 233, 207, 206, 64, 63, 29],
    }
    kind = next(name for name, one in MACHINES.items() if one is machine)
    filtering = program(machine, pid=PID, gpu=gpu)
    assert {run(filtering, number, machine.audit) for number in needed[kind]} == {ALLOW}


def test_an_unreachable_label_is_an_error() -> None:
    filling = [Instruction(RETURN, 0)] * 300
    far: list[Line] = [Jump(JUMP_EQUAL, 0, then="end"), *filling, Label("end"), Instruction(RETURN, 1)]
    with pytest.raises(ValueError, match="300 instructions away"):
        assemble(far)
    with pytest.raises(ValueError, match="unknown label 'nowhere'"):
        assemble([Jump(JUMP_EQUAL, 0, then="nowhere")])
    with pytest.raises(ValueError, match="-2 instructions away"):
        assemble([Label("before"), Instruction(RETURN, 0), Jump(JUMP_EQUAL, 0, then="before")])
