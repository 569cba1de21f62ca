"""A thread that has native code to itself, from opening a model to the end of the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from paddock.errors import ModelLoadFailed, PaddockError, WorkerCrashed
from paddock.worker.counters import Counters
from paddock.worker.logs import log_error

Told = TypeVar("Told")


@dataclass(slots=True, frozen=True)
class Opening:
    progress: float


@dataclass(slots=True, frozen=True)
class Died:
    """The engine is no longer usable; the worker reports it and exits."""

    error: PaddockError


class NativeThread(Generic[Told]):
    """Told things through `tell`, tells its own through `post`; neither ever blocks. A kind of model says in `_serve`
    how it is opened and what it does then.
    """

    def __init__(self, post: Callable[[Any], None], confine: Callable[[], None] = lambda: None) -> None:
        """`confine` is called on this thread before it opens a model."""
        self._post = post
        self._confine = confine
        self.counters = Counters()
        self._inbox: SimpleQueue[Told] = SimpleQueue()
        self.deciding = threading.Lock()
        """Held by this thread while it changes what it knows, and not while it waits or computes: whoever has it sees
        things as they are, and need not wait for the end of a step.
        """
        # A daemon, because nothing can interrupt native code: the process leaves without waiting for it.
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._is_open = False
        self._at_work_since: float | None = None
        """None while it waits."""

    def start(self) -> None:
        self._thread.start()

    def tell(self, command: Told) -> None:
        self._inbox.put(command)

    @property
    def in_step(self) -> float:
        """For how many seconds it has been at the same piece of work. For the other threads."""
        since = self._at_work_since
        return 0.0 if since is None else time.monotonic() - since

    def _serve(self) -> None:
        raise NotImplementedError

    def _main(self) -> None:
        with self.deciding:
            try:
                self._confine()
                self._serve()
            except Exception as error:
                if not isinstance(error, PaddockError):
                    log_error("the engine failed")
                self._post(Died(self._cause_of_death(error)))

    def _cause_of_death(self, error: Exception) -> PaddockError:
        """What ends a model that was loaded is a crash, whatever its own name."""
        reason = error.message if isinstance(error, PaddockError) else f"{type(error).__name__}: {error}"
        if self._is_open:
            return WorkerCrashed(f"the engine failed ({reason}); the next request loads the model again", retry_after=1)
        return error if isinstance(error, PaddockError) else ModelLoadFailed(f"the engine failed: {reason}")

    def _next(self, *, wait: bool) -> Told:
        """What it is told next. Raises `Empty` where there is nothing and it is not to wait."""
        self._at_work_since = None
        try:
            if not wait:
                return self._inbox.get_nowait()
            with self._visible():
                return self._inbox.get()
        finally:
            self._at_work_since = time.monotonic()

    @contextmanager
    def _in_turn(self, turn: AbstractContextManager[None]) -> Iterator[None]:
        """Work from when its turn has come. Until then somebody else works, and may be the one that hangs."""
        self._at_work_since = None
        with self._visible(), turn:
            self._at_work_since = time.monotonic()
            yield

    @contextmanager
    def _visible(self) -> Iterator[None]:
        self.deciding.release()
        try:
            yield
        finally:
            self.deciding.acquire()

    def _report_progress(self, progress: float) -> None:
        self._post(Opening(progress))
