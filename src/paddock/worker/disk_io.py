"""Moves prefixes between host memory and files. `scheduling/disk_tier.py` decides which.

The engine thread only lends spans of host memory and adopts what was read. Some threads read, so that a request does
not wait for a write, another one writes, and one looks for files that other processes write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from paddock.disk_cache import RETRY_AFTER, Changed, DirectoryChanges, DiskCache, Entry, Written
from paddock.engine import Engine, new_block
from paddock.scheduling import DiskTier, Read, Scheduler, Write
from paddock.types import Operation
from paddock.worker.commands import Call
from paddock.worker.logs import log_error, log_warning

_FILES_AT_ONCE = 2
"""Copying a file from the kernel and its checksum take time of a core, which is idle while a request waits for this."""
_LOOK_EVERY = 5.0
"""Seconds between two looks at what other processes write."""
_LOOK_SHARE = 50.0
"""After a look that took long, there is none for so many times as long."""
_LOOK_HEADERS = 1000
"""The most headers of one look."""


class DiskIO:
    """The engine thread calls all its public methods. `tell` sends a command to that thread."""

    def __init__(
        self, engine: Engine, scheduler: Scheduler, tier: DiskTier, cache: DiskCache, tell: Callable[[Call], None]
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._tier = tier
        self._cache = cache
        self._changes = DirectoryChanges(cache)
        self._tell = tell
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="disk reader")
        self._files = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="disk file reader")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="disk writer")
        self._ready: Read | None = None
        """A read that begins when the engine has freed the memory for it."""
        self._retry: threading.Timer | None = None
        self._paid = True
        threading.Thread(target=self._watch, name="disk watcher", daemon=True).start()

    def before(self, operations: Sequence[Operation]) -> None:
        """Save what these operations of the engine drop, if it has no file and the writer has room."""
        self._order(self._tier.evicted_writes(operations, time.monotonic()))

    def after(self) -> None:
        """The engine has carried out its operations."""
        self._tier.end_operations()
        self._begin_read()

    def read_more(self) -> None:
        """Begin the next read, and queue the requests that wait for no more."""
        if (read := self._scheduler.continue_reads()) is not None:
            self._ready = read
            if not self._scheduler.cache.has_operations:
                self._begin_read()

    def _begin_read(self) -> None:
        if self._ready is not None:
            self._reader.submit(self._read, self._ready)
            self._ready = None

    def write_more(self, *, is_busy: bool) -> None:
        """Begin the next writes if it is time for them. `is_busy`: requests run."""
        # Operations that the engine has not carried out may be about to make the spans.
        if not self._scheduler.cache.has_operations and self._cache.may_write(time.time()):
            self._order(self._tier.next_writes(time.monotonic(), is_busy=is_busy))
        self._say_if_it_pays()

    def begin_flush(self) -> None:
        """The worker ends: write also what could wait."""
        self._tier.begin_flush()

    def clear(self, tenant: str | None, done: Callable[[], None]) -> None:
        """Remove the files of a tenant, or all. `done` is called on the engine thread when that is done, and when
        nothing that was cleared is being written.
        """
        self._writer.submit(self._remove, self._tier.clear(tenant), Call(done))

    @property
    def is_written(self) -> bool:
        """Whether nothing waits for the writer. Call this after `write_more`."""
        return not self._tier.in_flight

    def _order(self, writes: Sequence[Write]) -> None:
        if writes:
            views = [self._engine.view_pieces(write.pieces) for write in writes]
            self._writer.submit(self._write, writes, views)

    def _finish_writes(self, results: Sequence[tuple[Write, Written]], seconds: float) -> None:
        self._tier.finish_writes(results, seconds, time.monotonic())
        if superseded := self._tier.take_superseded():
            self._writer.submit(self._remove, superseded)
        if any(written.is_refused for _, written in results) and self._retry is None:
            self._retry_later()

    def _retry_later(self) -> None:
        """Wake the engine thread when the disk is worth a try, also if no request comes."""
        self._retry = threading.Timer(RETRY_AFTER + 1, self._tell, [Call(self._end_retry)])
        self._retry.daemon = True
        self._retry.start()

    def _end_retry(self) -> None:
        """The next step tries to write again."""
        self._retry = None
        if not self._cache.may_write(time.time()):
            self._retry_later()

    def _say_if_it_pays(self) -> None:
        if self._tier.pays == self._paid:
            return
        self._paid = self._tier.pays
        prices = self._scheduler.prices
        log_warning(
            "prefixes are written to disk again"
            if self._paid
            else "no more prefixes are written to disk: computing them is faster here than reading them",
            prefill_tokens_per_second=round(prices.prefill.per_second),
            disk_read_bytes_per_second=round(prices.disk_read.per_second),
            bytes_per_token=self._engine.shape.bytes_per_token,
        )

    def _finish_read(self, read: Read, states: list[Any | None], seconds: float) -> None:
        read.request.answer.clock.restored(seconds)
        self._tier.finish_read(states, seconds)

    # ── on the threads ───────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        """List the files, and then what other processes change, until this one ends."""
        listed = Changed()
        try:
            self._cache.clean()
            listed = self._changes.look()
        except Exception:
            log_error("the prefixes on disk cannot be listed")
        self._tell(Call(lambda: self._tier.listed(listed.found)))
        took = 0.0
        while True:
            time.sleep(max(_LOOK_EVERY, _LOOK_SHARE * took))
            begun = time.perf_counter()
            try:
                changed = self._changes.look(_LOOK_HEADERS)
            except Exception:
                log_error("prefixes that other processes write to disk are not found any more")
                return
            took = time.perf_counter() - begun
            if changed:
                self._tell(Call(partial(self._tier.changed, changed.found, changed.gone)))

    def _read(self, read: Read) -> None:
        begun = time.perf_counter()
        states: list[Any | None] = []
        try:
            entries = [entry for entry, _ in read.entries]
            for entry, state in zip(entries, self._files.map(self._state, entries), strict=True):
                states.append(state)
                if state is None:
                    self._changes.forget([entry.name])
                    break
            self._cache.touch(entries[: len(states)], time.time())
        except Exception:
            log_error("prefixes cannot be read from disk")
            states.append(None)
        seconds = time.perf_counter() - begun
        self._tell(Call(partial(self._finish_read, read, states, seconds)))

    def _state(self, entry: Entry) -> Any | None:
        data = self._cache.read(entry, new_block)
        if data is None:
            return None
        try:
            return self._engine.unpack(data, len(entry))
        except ValueError as error:
            log_warning("a file of the disk cache does not fit this model, and is removed", reason=str(error))
            self._cache.remove([entry])
            return None

    def _write(self, writes: Sequence[Write], views: list[Any]) -> None:
        begun = time.perf_counter()
        results: list[tuple[Write, Written]] = []
        for write in writes:
            # No view is left when the engine thread counts their memory as free.
            written = self._write_file(write, views.pop(0))
            self._changes.forget(written.evicted)
            results.append((write, written))
        seconds = time.perf_counter() - begun
        self._tell(Call(lambda: self._finish_writes(results, seconds)))

    def _remove(self, entries: Sequence[Entry], done: Call | None = None) -> None:
        try:
            self._cache.remove(entries)
            self._changes.forget([entry.name for entry in entries])
        except Exception:
            log_error("prefixes cannot be removed from disk")
        if done is not None:
            self._tell(done)

    def _write_file(self, write: Write, view: Any) -> Written:
        if write.is_cancelled:
            return Written(None)
        try:
            # Each part is a copy of one layer, so the file is written while it is packed.
            parts, size = self._engine.pack(view), self._engine.packed_size(view)
            return self._cache.write(write.entry, parts, size, time.time(), write.chain)
        except Exception:
            log_error("a prefix cannot be written to disk")
            return Written(None)
