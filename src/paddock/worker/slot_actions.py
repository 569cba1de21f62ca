"""Saving, restoring and erasing what slots remember.

The engine thread only lends what lies in host memory, or adopts it; files have a thread of their own.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paddock.engine import Engine
from paddock.errors import InvalidRequest, NotSupported, PaddockError, Unavailable
from paddock.scheduling import Scheduler
from paddock.types import SlotPrefix
from paddock.wire import Problem, Refused, SlotAction, SlotDone
from paddock.worker import slot_files
from paddock.worker.engine_thread import Visit


class SlotActions:
    """Every action is answered by one `SlotDone` or `Refused`, from whichever thread comes last."""

    def __init__(
        self, engine: Engine, visit: Callable[[Visit], None], send: Callable[[SlotDone | Refused], None]
    ) -> None:
        self._engine = engine
        self._visit = visit
        self._send = send
        self.ram_bytes = engine.shape.ram_bytes
        """The host memory that there is for prefixes now. Set by the I/O thread."""
        # One thread: the disk does not get faster by two, and one file at a time is held in memory.
        self._files = ThreadPoolExecutor(1, thread_name_prefix="files")

    def begin(self, action: SlotAction) -> None:
        try:
            self._refuse_impossible(action)
        except PaddockError as error:
            self._send(Refused(action.id, Problem.of(error)))
            return
        errand = {"save": self._lend, "restore": self._fetch, "erase": self._erase}[action.action]
        self._visit(Visit(action.slot, lambda engine, scheduler: errand(action, engine, scheduler)))

    def _refuse_impossible(self, action: SlotAction) -> None:
        count = self._engine.info.n_slots
        if action.slot >= count:
            raise InvalidRequest(f"there are {count} slots, from 0 to {count - 1}", param="id_slot")
        if action.action == "erase":
            return
        if self._engine.shape.reuse != "prefix":
            raise NotSupported(
                "this model's memory cannot be taken apart, so its slots can be neither saved nor restored"
            )
        if not self.ram_bytes:
            raise NotSupported(
                "slots are saved from host memory and restored to it, and there is none for prefixes: --cache-ram is "
                "0, or memory_limit leaves nothing beside the models"
            )

    # ── on the engine thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _erase(self, action: SlotAction, _engine: Engine, scheduler: Scheduler) -> None:
        self._send(SlotDone(action.id, scheduler.slots.erase(action.slot)))

    def _lend(self, action: SlotAction, engine: Engine, scheduler: Scheduler) -> None:
        begun = time.perf_counter()
        prefix, pieces = scheduler.slots.recall(action.slot)
        lent = engine.lend(pieces)
        self._with_files(action, lambda: self._write(action, prefix, lent, begun))

    def _fetch(self, action: SlotAction, _engine: Engine, _scheduler: Scheduler) -> None:
        self._with_files(action, lambda: self._read(action))

    def _adopt(self, action: SlotAction, file: _File, scheduler: Scheduler) -> None:
        known = scheduler.slots.adopt(action.slot, file.prefix, file.state)
        if known:
            self._send(SlotDone(action.id, known, file.size, time.perf_counter() - file.begun))
        else:
            error = Unavailable("all host memory for prefixes is in use by running requests", retry_after=1)
            self._send(Refused(action.id, Problem.of(error)))

    # ── on the file thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _with_files(self, action: SlotAction, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except PaddockError as error:
                self._send(Refused(action.id, Problem.of(error)))
            except Exception as error:
                traceback.print_exc()
                failed = PaddockError(f"the slot's file could not be handled: {type(error).__name__}: {error}")
                self._send(Refused(action.id, Problem.of(failed)))

        self._files.submit(run)

    def _write(self, action: SlotAction, prefix: SlotPrefix, lent: Any, begun: float) -> None:
        if not prefix.tokens:
            raise InvalidRequest(f"slot {action.slot} remembers nothing that could be saved", param="id_slot")
        header = slot_files.Header(self._engine.origin, prefix)
        size = slot_files.write(action.folder, action.filename, header, self._engine.pack(lent))
        self._send(SlotDone(action.id, len(prefix.tokens), size, time.perf_counter() - begun))

    def _read(self, action: SlotAction) -> None:
        begun = time.perf_counter()
        limit = self.ram_bytes
        prefix, packed, size = slot_files.read(action.folder, action.filename, self._engine.origin, limit=limit)
        try:
            state = self._engine.unpack(packed, len(prefix.tokens))
        except ValueError as error:
            raise InvalidRequest(f"{action.filename!r} is damaged: {error}", param="filename") from None
        file = _File(prefix, state, size, begun)
        taken = threading.Event()

        def take(_engine: Engine, scheduler: Scheduler) -> None:
            self._adopt(action, file, scheduler)
            taken.set()

        # At once, whoever may be in the slot by now; and no other file is read before.
        self._visit(Visit(None, take))
        taken.wait()


@dataclass(slots=True, frozen=True)
class _File:
    """A file that was read, from `begun` on."""

    prefix: SlotPrefix
    state: Any
    size: int
    begun: float
