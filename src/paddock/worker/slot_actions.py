"""Saves, restores and erases the prefixes of slots.

The engine thread only lends prefixes from host memory or adopts them. A thread of its own reads and writes files.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paddock.engine import Engine
from paddock.errors import InvalidRequest, NotSupported, PaddockError, Unavailable
from paddock.scheduling import Scheduler
from paddock.types import SlotAction, SlotPrefix
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
            self._check(message.action)
        except PaddockError as error:
            self._refuse(message, error)
            return
        run = {"save": self._save, "restore": self._restore, "erase": self._erase}[message.action.action]
        self._visit(Visit(message.action.slot, lambda scheduler: run(message, scheduler)))

    def _refuse(self, message: ActOnSlot, error: PaddockError) -> None:
        self._send(Refused(message.id, Problem.of(error)))

    def _check(self, action: SlotAction) -> None:
        count = self._engine.info.n_slots
        if action.slot >= count:
            raise InvalidRequest(f"id_slot must be 0 to {count - 1}: this model has {count} slots", param="id_slot")
        if action.action == "erase":
            return
        if self._engine.shape.reuse != "prefix":
            raise NotSupported("slots of this model cannot be saved or restored: its memory cannot be split by token")
        if not self.ram_bytes:
            raise NotSupported(
                "slots cannot be saved or restored without host memory for prefixes: --cache-ram is 0, or memory_limit "
                "leaves nothing beside the models"
            )

    # ── on the engine thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _erase(self, message: ActOnSlot, scheduler: Scheduler) -> None:
        self._send(SlotDone(message.id, scheduler.slots.erase(message.action.slot)))

    def _save(self, message: ActOnSlot, scheduler: Scheduler) -> None:
        begun = time.perf_counter()
        prefix, pieces = scheduler.slots.recall(message.action.slot)
        scheduler.cache.pin(pieces)
        views = self._engine.view_pieces(pieces)

        def write() -> None:
            try:
                done = self._write(message, prefix, views, begun)
            finally:
                self._visit(Visit(None, lambda scheduler: scheduler.cache.unpin(pieces)))
            self._send(done)  # only now: a client that erases the slot next finds nothing pinned

        self._with_files(message, write)

    def _restore(self, message: ActOnSlot, _scheduler: Scheduler) -> None:
        self._with_files(message, lambda: self._read(message))

    # ── on the file thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _with_files(self, message: ActOnSlot, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except PaddockError as error:
                self._refuse(message, error)
            except Exception as error:
                traceback.print_exc()
                reason = f"cannot read or write the file of the slot: {type(error).__name__}: {error}"
                self._refuse(message, PaddockError(reason))

        self._files.submit(run)

    def _write(self, message: ActOnSlot, prefix: SlotPrefix, views: Any, begun: float) -> SlotDone:
        if not prefix.tokens:
            raise InvalidRequest(f"slot {message.action.slot} has no stored tokens to save", param="id_slot")
        header = slot_files.Header(self._engine.origin, prefix)
        size = slot_files.write(message.action.folder, message.action.filename, header, self._engine.pack(views))
        return SlotDone(message.id, len(prefix.tokens), size, time.perf_counter() - begun)

    def _read(self, message: ActOnSlot) -> None:
        begun, action = time.perf_counter(), message.action
        prefix, packed, size = slot_files.read(
            action.folder, action.filename, self._engine.origin, limit=self.ram_bytes
        )
        try:
            state = self._engine.unpack(packed, len(prefix.tokens))
        except ValueError as error:
            raise InvalidRequest(f"{action.filename!r} is damaged: {error}", param="filename") from None
        is_done = threading.Event()

        def adopt(scheduler: Scheduler) -> None:
            known = scheduler.slots.adopt(action.slot, prefix, state)
            if known:
                self._send(SlotDone(message.id, known, size, time.perf_counter() - begun))
            else:
                reason = "all host memory for prefixes is in use by running requests"
                self._refuse(message, Unavailable(reason, retry_after=1))
            is_done.set()

        # Before the next step, even if the slot is in use by now. The next file is not read before.
        self._visit(Visit(None, adopt))
        is_done.wait()
