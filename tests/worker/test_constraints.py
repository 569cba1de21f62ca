from __future__ import annotations

import threading

import pytest

from paddock.errors import InvalidRequest, Unavailable
from paddock.types import Constraint
from paddock.worker.constraints import Compiler


class _FakeEngine:
    """Compiles at once, except the constraint `slow`, which blocks."""

    def __init__(self) -> None:
        self.unblock = threading.Event()
        self.threads: list[threading.Thread] = []

    def compile(self, constraint: Constraint) -> str:
        self.threads.append(threading.current_thread())
        if constraint.source == "slow":
            assert self.unblock.wait(60)
        if constraint.source == "wrong":
            raise InvalidRequest("no", param=constraint.param)
        return constraint.source


def _constraint(source: str) -> Constraint:
    return Constraint("regex", source, "response_format.schema")


def test_what_takes_too_long_is_refused_and_others_unblock() -> None:
    engine = _FakeEngine()
    compiler = Compiler(engine.compile, timeout=0.05)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"0\.05 s") as refused:
            compiler.compile(_constraint("slow"))
        assert refused.value.param == "response_format.schema"
    compiler = Compiler(engine.compile, timeout=60)
    assert compiler.compile(_constraint("quick")) == "quick"
    with pytest.raises(InvalidRequest, match="no"):
        compiler.compile(_constraint("wrong"))
    engine.unblock.set()


def test_no_more_than_so_many_of_a_key_unblock_for_nobody() -> None:
    engine = _FakeEngine()
    compiler = Compiler(engine.compile, timeout=0.05)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            compiler.compile(_constraint("slow"), "flood")
    with pytest.raises(Unavailable, match="2 other schemas and grammars of this key"):
        compiler.compile(_constraint("quick"), "flood")
    other = Compiler(engine.compile, timeout=60)
    other._running = compiler._running
    assert other.compile(_constraint("quick"), "other") == "quick"
    engine.unblock.set()
    for thread in engine.threads:
        thread.join(60)
    assert other.compile(_constraint("quick"), "flood") == "quick"


def test_preparation_does_not_count_against_the_time_limit() -> None:
    """Tables of a large vocabulary take longer to build than a constraint may take to compile."""
    prepared: list[bool] = []
    engine = _FakeEngine()

    def prepare() -> None:
        threading.Event().wait(2.1)
        prepared.append(True)

    compiler = Compiler(engine.compile, timeout=2, prepare=prepare)  # long enough to start a thread on a busy machine
    assert compiler.compile(_constraint("quick")) == "quick"
    assert prepared == [True]
