"""The thread that owns the engine, from opening the model to the end of the process: *receive → step*."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any

from paddock.engine import Engine, PooledEngine
from paddock.errors import ModelLoadFailed, PaddockError, WorkerCrashed
from paddock.types import EngineOptions
from paddock.wire.messages import Stats
from paddock.worker.commands import Command, Died, Event, Opened, Opening
from paddock.worker.counters import Counters
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.logs import log_error


class EngineThread(ABC):
    """The loop of every kind of model. A subclass opens its engine, handles commands and runs steps.

    `tell` gives it commands, `post` takes its events and `send` its messages to the gateway. None of them blocks.
    """

    engine: Engine | PooledEngine
    """Other threads may use it when `Opened` is posted, within the limits that its methods state."""

    def __init__(
        self,
        model_path: str,
        options: EngineOptions,
        cpu_lock: CpuLock,
        post: Callable[[Event], None],
        send: Callable[[Any], None],
        confine: Callable[[], None] = lambda: None,
        is_expecting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`confine` is called on this thread before it opens the model. `is_expecting`: whether a request is being
        prepared, which this thread will be given soon.
        """
        self._model_path = model_path
        self._options = options
        self._cpu_lock = cpu_lock
        self._post = post
        self._send = send
        self._confine = confine
        self._is_expecting = is_expecting
        self.counters = Counters()
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self.state_lock = threading.Lock()
        """The thread holds it while it changes its state, but not while it computes or waits. Another thread that holds
        it sees a consistent state, and need not wait for the end of a step.
        """
        # A daemon, because nothing can interrupt native code: the process exits without waiting for it.
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._is_open = False
        self._patience: float | None = None
        """Seconds of waiting until `_rest`; None: never."""
        self._busy_since: float | None = None
        """None while it waits."""

    def start(self) -> None:
        self._thread.start()

    def tell(self, command: Command) -> None:
        self._inbox.put(command)

    @property
    def in_step(self) -> float:
        """For how many seconds it has been in the same step; 0 while it waits. Any thread may read this."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    # ── the kind of model ────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _open(self) -> None:
        """Set `engine`. Raises `ModelLoadFailed`."""

    @property
    @abstractmethod
    def _is_idle(self) -> bool:
        """Whether there is nothing to do until the next command."""

    @property
    def _write_back_delay(self) -> float:
        """How many seconds to wait for a command before the next step, if no request waits for that step."""
        return 0.0

    @abstractmethod
    def _handle(self, command: Command) -> None: ...

    @abstractmethod
    def _step(self) -> None:
        """Run the next step, if there is something to compute."""

    @abstractmethod
    def _stats(self, now: float) -> Stats: ...

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _main(self) -> None:
        with self.state_lock:
            try:
                self._confine()
                self._open()
                self._is_open = True
                self._post(Opened())
                while True:
                    self._receive()
                    self._step()
            except BaseException as error:  # without `Died` the requests would wait forever
                if not isinstance(error, PaddockError):
                    log_error("the engine failed")
                self._post(Died(self._cause_of_death(error)))

    def _cause_of_death(self, error: BaseException) -> PaddockError:
        """After the model is loaded every error is a crash."""
        reason = error.message if isinstance(error, PaddockError) else f"{type(error).__name__}: {error}"
        if self._is_open:
            return WorkerCrashed(f"the engine failed ({reason}); the next request loads the model again", retry_after=1)
        return error if isinstance(error, PaddockError) else ModelLoadFailed(f"the engine failed: {reason}")

    def _receive(self) -> None:
        """Handle all waiting commands. If the thread is idle, wait for one."""
        is_idle, now = self._is_idle, time.perf_counter()
        if self.counters.are_due(now, is_idle=is_idle):
            self._send(self._stats(now))
        try:
            command = self._next(self._patience if is_idle else self._write_back_delay)
        except Empty:
            if is_idle:
                self._rest()
            return
        self._handle_all(command)

    def _handle_all(self, command: Command) -> None:
        """Handle a command and all that wait behind it."""
        with suppress(Empty):
            while True:
                self._handle(command)
                command = self._inbox.get_nowait()

    def _rest(self) -> None:
        """It has been idle for `_patience` seconds."""
        self._patience = None

    def _next(self, patience: float | None) -> Command:
        """The next command. Raises `Empty` if none comes within so many seconds."""
        self._busy_since = None
        try:
            if patience == 0.0:
                return self._inbox.get_nowait()
            with self._unlocked():
                return self._inbox.get(timeout=patience)
        finally:
            self._busy_since = time.monotonic()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Let other threads read the state, and hold the CPU lock if the engine computes on the CPU.

        The wait for the lock is not part of the step: until then another worker computes, and only that one can hang.
        """
        self._busy_since = None
        with self._unlocked(), self._cpu_lock.hold() if self.engine.is_cpu_bound else nullcontext():
            self._busy_since = time.monotonic()
            yield

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self.state_lock.release()
        try:
            yield
        finally:
            self.state_lock.acquire()

    def _report_progress(self, progress: float) -> None:
        self._post(Opening(progress))
