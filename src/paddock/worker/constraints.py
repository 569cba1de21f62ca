"""Constraints compiled within a time, however long they would take."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from paddock.errors import InvalidRequest, Unavailable
from paddock.types import Constraint
from paddock.worker.priority import BEHIND, LAST, put_behind

_PATIENCE = 5.0
_AT_ONCE = 8
_PER_KEY = 2


class Compiler:
    """Native code cannot be interrupted, but it need not be waited for: what takes longer than `patience` seconds is
    refused, and its thread goes on for nobody, behind everything else. There are only so many such threads, and fewer
    for one key; what bounds the size of a constraint ends them.
    """

    def __init__(
        self,
        compile: Callable[[Constraint], Any],
        patience: float = _PATIENCE,
        *,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`prepare` is done before anything is compiled, and takes the time that it takes: no constraint is to blame
        for it.
        """
        self._compile = compile
        self._prepare = prepare
        self._patience = patience
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()
        """By key, with those that nobody waits for."""

    def compile(self, constraint: Constraint, key: str = "") -> Any:
        """Raises `InvalidRequest` for what cannot be enforced, or not be made ready in time."""
        self._prepare()
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_place(key), self._patience):
                raise Unavailable(
                    f"{self._running[key]} other schemas and grammars of this key are still being made ready",
                    retry_after=self._patience,
                )
            self._running[key] += 1
        outcome: Future[Any] = Future()
        thread = threading.Thread(target=self._run, args=(constraint, key, outcome), name="constraint", daemon=True)
        thread.start()
        try:
            return outcome.result(self._patience)
        except TimeoutError:
            put_behind(thread, LAST)
            raise InvalidRequest(
                f"{constraint.param} cannot be enforced: making it ready takes more than {self._patience:g} s",
                param=constraint.param,
            ) from None

    def _has_place(self, key: str) -> bool:
        return self._running[key] < _PER_KEY and self._running.total() < _AT_ONCE

    def _run(self, constraint: Constraint, key: str, outcome: Future[Any]) -> None:
        put_behind(threading.current_thread(), BEHIND)
        try:
            outcome.set_result(self._compile(constraint))
        except Exception as error:
            outcome.set_exception(error)
        finally:
            with self._changed:
                self._running[key] -= 1
                self._changed.notify_all()
