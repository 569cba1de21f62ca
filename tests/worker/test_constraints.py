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
    for _ in range(3):
        with pytest.raises(InvalidRequest, match=r"0\.05 s") as refused:
            compiler.compile(_constraint("slow"))
        assert refused.value.param == "response_format.schema"
    compiler = Compiler(slow.compile, patience=60)
    assert compiler.compile(_constraint("quick")) == "quick"
    with pytest.raises(InvalidRequest, match="no"):
        compiler.compile(_constraint("wrong"))
    slow.go_on.set()


def test_no_more_than_so_many_go_on_for_nobody() -> None:
    slow = _Slow()
    compiler = Compiler(slow.compile, patience=0.05)
    for _ in range(4):
        with pytest.raises(InvalidRequest):
            compiler.compile(_constraint("slow"))
    with pytest.raises(Unavailable):
        compiler.compile(_constraint("quick"))
    slow.go_on.set()
    for thread in slow.threads:
        thread.join(60)
    compiler = Compiler(slow.compile, patience=60)
    assert compiler.compile(_constraint("quick")) == "quick"
