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
from paddock.wire import ActOnSlot, Problem, Refused, SlotDone
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

    def begin(self, message: ActOnSlot) -> None:
        try:
            self._refuse_impossible(message)
        except PaddockError as error:
            self._send(Refused(message.id, Problem.of(error)))
            return
        errand = {"save": self._lend, "restore": self._fetch, "erase": self._erase}[message.action.action]
        self._visit(Visit(message.action.slot, lambda engine, scheduler: errand(message, engine, scheduler)))

    def _refuse_impossible(self, message: ActOnSlot) -> None:
        count = self._engine.info.n_slots
        if message.action.slot >= count:
            raise InvalidRequest(f"there are {count} slots, from 0 to {count - 1}", param="id_slot")
        if message.action.action == "erase":
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

    def _erase(self, message: ActOnSlot, _engine: Engine, scheduler: Scheduler) -> None:
        self._send(SlotDone(message.id, scheduler.slots.erase(message.action.slot)))

    def _lend(self, message: ActOnSlot, engine: Engine, scheduler: Scheduler) -> None:
        begun = time.perf_counter()
        prefix, pieces = scheduler.slots.recall(message.action.slot)
        lent = engine.lend(pieces)
        self._with_files(message, lambda: self._write(message, prefix, lent, begun))

    def _fetch(self, message: ActOnSlot, _engine: Engine, _scheduler: Scheduler) -> None:
        self._with_files(message, lambda: self._read(message))

    def _adopt(self, message: ActOnSlot, file: _File, scheduler: Scheduler) -> None:
        known = scheduler.slots.adopt(message.action.slot, file.prefix, file.state)
        if known:
            self._send(SlotDone(message.id, known, file.size, time.perf_counter() - file.begun))
        else:
            error = Unavailable("all host memory for prefixes is in use by running requests", retry_after=1)
            self._send(Refused(message.id, Problem.of(error)))

    # ── on the file thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _with_files(self, message: ActOnSlot, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except PaddockError as error:
                self._send(Refused(message.id, Problem.of(error)))
            except Exception as error:
                traceback.print_exc()
                failed = PaddockError(f"the slot's file could not be handled: {type(error).__name__}: {error}")
                self._send(Refused(message.id, Problem.of(failed)))

        self._files.submit(run)

    def _write(self, message: ActOnSlot, prefix: SlotPrefix, lent: Any, begun: float) -> None:
        if not prefix.tokens:
            raise InvalidRequest(f"slot {message.action.slot} remembers nothing that could be saved", param="id_slot")
        header = slot_files.Header(self._engine.origin, prefix)
        size = slot_files.write(message.action.folder, message.action.filename, header, self._engine.pack(lent))
        self._send(SlotDone(message.id, len(prefix.tokens), size, time.perf_counter() - begun))

    def _read(self, message: ActOnSlot) -> None:
        begun = time.perf_counter()
        limit = self.ram_bytes
        prefix, packed, size = slot_files.read(
            message.action.folder, message.action.filename, self._engine.origin, limit=limit
        )
        try:
            state = self._engine.unpack(packed, len(prefix.tokens))
        except ValueError as error:
            raise InvalidRequest(f"{message.action.filename!r} is damaged: {error}", param="filename") from None
        file = _File(prefix, state, size, begun)
        taken = threading.Event()

        def take(_engine: Engine, scheduler: Scheduler) -> None:
            self._adopt(message, file, scheduler)
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
