"""The CPU lock between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO

import pytest

from paddock.worker.cpu_lock import CpuLock
from tests.server import wait_for

_CHILD = """
import sys
from paddock.worker.cpu_lock import CpuLock
cpu_lock = CpuLock(int(sys.argv[1]), threads=2, cpus=eval(sys.argv[2]))
for line in sys.stdin:
    with cpu_lock.hold():
        print("in", flush=True)
        sys.stdin.readline()
    print("out", flush=True)
"""


class Child:
    def __init__(self, file: IO[bytes], cpus: Sequence[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(file.fileno()), repr(list(cpus))],
            pass_fds=(file.fileno(),), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def begin(self) -> None:
        self._stdin.write("\n")
        self._stdin.flush()

    end = begin

    def prints(self, word: str) -> bool:
        return self._stdout.readline().strip() == word

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the kernel's queue for a lock."""
        with open("/proc/locks") as locks:
            return any("->" in line and f" {self._process.pid} " in line for line in locks)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._stdin.close()
        self._stdout.close()


def _is_waiting(child: Child) -> bool:
    return child.is_waiting


@pytest.fixture
def file() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        yield file


def test_two_workers_never_compute_on_the_same_cores_at_once(file: IO[bytes]) -> None:
    first, second = Child(file, range(2)), Child(file, range(2))
    first.begin()
    assert first.prints("in")
    second.begin()
    wait_for(lambda: second.is_waiting, 10, "the second worker to queue")
    first.end()
    assert first.prints("out")
    assert second.prints("in")
    first.kill()
    second.kill()


def test_a_worker_that_is_killed_releases_the_lock(file: IO[bytes]) -> None:
    first, second = Child(file, range(2)), Child(file, range(2))
    first.begin()
    assert first.prints("in")
    second.begin()
    wait_for(lambda: second.is_waiting, 10, "the second worker to queue")
    first.kill()
    assert second.prints("in")
    second.kill()


def test_workers_that_fit_on_the_cores_run_at_the_same_time(file: IO[bytes]) -> None:
    first, second = Child(file, range(4)), Child(file, range(4))
    first.begin()
    assert first.prints("in")
    second.begin()
    assert second.prints("in")
    first.kill()
    second.kill()


def test_the_lock_is_released_after_an_error(file: IO[bytes]) -> None:
    cpu_lock = CpuLock(os.dup(file.fileno()), threads=1, cpus=[0])
    with pytest.raises(ZeroDivisionError), cpu_lock.hold():
        raise ZeroDivisionError
    other = Child(file, range(1))
    other.begin()
    assert other.prints("in")
    other.kill()


def test_workers_on_the_same_cpus_alternate_and_others_do_not_wait(file: IO[bytes]) -> None:
    first, same, other, everywhere = (Child(file, cpus) for cpus in ([0, 1], [1, 0], [2, 5], range(2)))
    first.begin()
    assert first.prints("in")
    other.begin()
    assert other.prints("in")
    for child in (same, everywhere):
        child.begin()
        wait_for(partial(_is_waiting, child), 10, "it to queue")
    first.end()
    assert first.prints("out")
    assert same.prints("in")
    for child in (first, same, other, everywhere):
        child.kill()
