"""Saves, restores and erases the prefixes of slots.

The engine thread only lends prefixes from host memory or adopts them. A thread of its own reads and writes files.
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
from paddock.wire.messages import ActOnSlot, Problem, Refused, SlotDone
from paddock.worker import slot_files
from paddock.worker.commands import Visit


class SlotActions:
    """Every action is answered by one `SlotDone` or `Refused`, from the last thread that works on it."""

    def __init__(
        self, engine: Engine, visit: Callable[[Visit], None], send: Callable[[SlotDone | Refused], None]
    ) -> None:
        self._engine = engine
        self._visit = visit
        self._send = send
        self.ram_bytes = engine.shape.ram_bytes
        """Host memory limit for prefixes. The I/O thread sets it."""
        # One thread: two would not make the disk faster, and only one file at a time is in memory.
        self._files = ThreadPoolExecutor(1, thread_name_prefix="files")

    def begin(self, message: ActOnSlot) -> None:
        try:
            self._check(message)
        except PaddockError as error:
            self._send(Refused(message.id, Problem.of(error)))
            return
        run = {"save": self._save, "restore": self._restore, "erase": self._erase}[message.action.action]
        self._visit(Visit(message.action.slot, lambda engine, scheduler: run(message, engine, scheduler)))

    def _check(self, message: ActOnSlot) -> None:
        count = self._engine.info.n_slots
        if message.action.slot >= count:
            raise InvalidRequest(f"id_slot must be 0 to {count - 1}: this model has {count} slots", param="id_slot")
        if message.action.action == "erase":
            return
        if self._engine.shape.reuse != "prefix":
            raise NotSupported("slots of this model cannot be saved or restored: its memory cannot be split by token")
        if not self.ram_bytes:
            raise NotSupported(
                "slots cannot be saved or restored without host memory for prefixes: --cache-ram is 0, or memory_limit "
                "leaves nothing beside the models"
            )

    # ── on the engine thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _erase(self, message: ActOnSlot, _engine: Engine, scheduler: Scheduler) -> None:
        self._send(SlotDone(message.id, scheduler.slots.erase(message.action.slot)))

    def _save(self, message: ActOnSlot, engine: Engine, scheduler: Scheduler) -> None:
        begun = time.perf_counter()
        prefix, pieces = scheduler.slots.recall(message.action.slot)
        views = engine.view_pieces(pieces)
        self._with_files(message, lambda: self._write(message, prefix, views, begun))

    def _restore(self, message: ActOnSlot, _engine: Engine, _scheduler: Scheduler) -> None:
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
                failed = PaddockError(f"cannot read or write the file of the slot: {type(error).__name__}: {error}")
                self._send(Refused(message.id, Problem.of(failed)))

        self._files.submit(run)

    def _write(self, message: ActOnSlot, prefix: SlotPrefix, views: Any, begun: float) -> None:
        if not prefix.tokens:
            raise InvalidRequest(f"slot {message.action.slot} has no stored tokens to save", param="id_slot")
        header = slot_files.Header(self._engine.origin, prefix)
        size = slot_files.write(message.action.folder, message.action.filename, header, self._engine.pack(views))
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

        # Before the next step, even if the slot is in use by now. The next file is not read before.
        self._visit(Visit(None, take))
        taken.wait()


@dataclass(slots=True, frozen=True)
class _File:
    """A file that was read. `begun` is when reading started."""

    prefix: SlotPrefix
    state: Any
    size: int
    begun: float
