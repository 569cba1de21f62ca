"""Compiles constraints with a time limit."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from paddock.errors import InvalidRequest, Unavailable
from paddock.types import Constraint

_TIMEOUT = 5.0
_AT_ONCE = 8
_PER_KEY = 2
_LOW, _LOWEST = 10, 19
"""Priorities below those of the engine thread and the I/O thread."""


class Compiler:
    """Refuses a constraint that takes longer than `timeout` seconds. Native code cannot be interrupted, so its thread
    continues at the lowest priority. The number of such threads is limited, in total and for each key. They end because
    the size of a constraint is limited.
    """

    def __init__(
        self,
        compile: Callable[[Constraint], Any],
        timeout: float = _TIMEOUT,
        *,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`prepare` is called before each compilation. Its time does not count against the limit."""
        self._compile = compile
        self._prepare = prepare
        self._timeout = timeout
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()
        """Compilations by key, including those that timed out."""

    def compile(self, constraint: Constraint, key: str = "") -> Any:
        """Raises `InvalidRequest` for a constraint that cannot be enforced or takes too long."""
        self._prepare()
        with self._changed:
            if not self._changed.wait_for(lambda: self._may_start(key), self._timeout):
                raise Unavailable(
                    f"{self._running[key]} other schemas and grammars of this key are still being compiled",
                    retry_after=self._timeout,
                )
            self._running[key] += 1
        outcome: Future[Any] = Future()
        thread = threading.Thread(target=self._run, args=(constraint, key, outcome), name="constraint", daemon=True)
        thread.start()
        try:
            return outcome.result(self._timeout)
        except TimeoutError:
            _set_priority(thread, _LOWEST)
            raise InvalidRequest(
                f"{constraint.param} cannot be enforced: its compilation takes more than {self._timeout:g} s",
                param=constraint.param,
            ) from None

    def _may_start(self, key: str) -> bool:
        return self._running[key] < _PER_KEY and self._running.total() < _AT_ONCE

    def _run(self, constraint: Constraint, key: str, outcome: Future[Any]) -> None:
        _set_priority(threading.current_thread(), _LOW)
        try:
            outcome.set_result(self._compile(constraint))
        except BaseException as error:  # a panic in llguidance is no `Exception`
            outcome.set_exception(error)
        finally:
            with self._changed:
                self._running[key] -= 1
                self._changed.notify_all()


def _set_priority(thread: threading.Thread, nice: int) -> None:
    """Only for threads in native code: one that holds the GIL and does not get to run would stop all others."""
    if sys.platform == "linux" and thread.native_id is not None:
        try:
            os.setpriority(os.PRIO_PROCESS, thread.native_id, nice)
        except OSError:
            pass  # the thread has ended, or the system does not allow it
