"""Child processes of the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import uvloop

from paddock.fleet.process.child import Child
from tests.server import alive

_HOLDS_A_LOCK = """
    import asyncio, os, threading
    import uvloop
    from paddock.fleet.process.child import Child

    lock = threading.Lock()
    os.register_at_fork(after_in_child=lock.acquire)  # as huggingface_hub does, to close its connections

    async def main():
        child = Child(["/bin/echo", "started"], pass_fds=(), env={})
        print(await child.output.read(), await child.wait())

    with lock:
        uvloop.run(main())
"""


def _run(code: str, **env: str) -> tuple[bytes, int]:
    async def run() -> tuple[bytes, int]:
        child = Child([sys.executable, "-c", code], pass_fds=(), env={**os.environ, **env})
        return await child.output.read(), await child.wait()

    return uvloop.run(run())


def test_output_and_exit_status() -> None:
    assert _run("import os, sys; print(os.environ['A'], flush=True); sys.exit('no')", A="b") == (b"b\nno\n", 1)
    assert _run("import os; os.abort()") == (b"", -signal.SIGABRT)
    assert _run("import sys; print(sys.stdin.read(), end='')") == (b"", 0), "its input is empty"


def test_a_child_is_killed_once_and_awaited_by_many() -> None:
    async def run() -> list[int]:
        child = Child(["/bin/sleep", "100"], pass_fds=(), env={})
        assert os.getsid(child.pid) == child.pid, "Ctrl-C does not reach it"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(child.wait(), 0.01)
        waiting = asyncio.gather(child.wait(), child.wait())
        child.kill()
        found = [*await waiting, await child.wait()]
        child.kill()
        return found

    assert uvloop.run(run()) == [-signal.SIGKILL] * 3


def test_what_cannot_be_started() -> None:
    async def run() -> None:
        Child(["/does/not/exist"], pass_fds=(), env={})

    with pytest.raises(FileNotFoundError):
        uvloop.run(run())


def test_no_process_is_left_where_there_are_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def refuse(thread: threading.Thread) -> None:
        pids.append(thread._target.__self__.pid)  # type: ignore[attr-defined]
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        Child(["/bin/sleep", "100"], pass_fds=(), env={})

    with pytest.raises(OSError, match="can't start new thread"):
        uvloop.run(run())
    assert [alive(pid) for pid in pids] == [False]


def test_no_code_of_libraries_runs_in_the_fork() -> None:
    """With the own way of uvloop to start processes this waits forever."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_HOLDS_A_LOCK)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "b'started\\n' 0\n", done.stderr
