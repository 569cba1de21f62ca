from __future__ import annotations

import threading

import pytest

from paddock.errors import InvalidRequest, Unavailable
from paddock.types import Constraint
from paddock.worker.constraints import Compiler


class _Slow:
    """Compiles at once, unless it is told to wait."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.threads: list[threading.Thread] = []

    def compile(self, constraint: Constraint) -> str:
        self.threads.append(threading.current_thread())
        if constraint.source == "slow":
            assert self.go_on.wait(60)
        if constraint.source == "wrong":
            raise InvalidRequest("no", param=constraint.param)
        return constraint.source


def _constraint(source: str) -> Constraint:
    return Constraint("regex", source, "response_format.schema")


def test_what_takes_too_long_is_refused_and_others_go_on() -> None:
    slow = _Slow()
    compiler = Compiler(slow.compile, patience=0.05)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"0\.05 s") as refused:
            compiler.compile(_constraint("slow"))
        assert refused.value.param == "response_format.schema"
    compiler = Compiler(slow.compile, patience=60)
    assert compiler.compile(_constraint("quick")) == "quick"
    with pytest.raises(InvalidRequest, match="no"):
        compiler.compile(_constraint("wrong"))
    slow.go_on.set()


def test_no_more_than_so_many_of_a_key_go_on_for_nobody() -> None:
    slow = _Slow()
    compiler = Compiler(slow.compile, patience=0.05)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            compiler.compile(_constraint("slow"), "flood")
    with pytest.raises(Unavailable, match="2 other schemas and grammars of this key"):
        compiler.compile(_constraint("quick"), "flood")
    patient = Compiler(slow.compile, patience=60)
    patient._running = compiler._running
    assert patient.compile(_constraint("quick"), "other") == "quick"
    slow.go_on.set()
    for thread in slow.threads:
        thread.join(60)
    assert patient.compile(_constraint("quick"), "flood") == "quick"


def test_what_all_constraints_need_is_not_held_against_the_first() -> None:
    """Tables of a large vocabulary take longer to build than a constraint may take to compile."""
    prepared: list[bool] = []
    slow = _Slow()

    def prepare() -> None:
        threading.Event().wait(0.2)
        prepared.append(True)

    compiler = Compiler(slow.compile, patience=0.1, prepare=prepare)
    assert compiler.compile(_constraint("quick")) == "quick"
    assert prepared == [True]
