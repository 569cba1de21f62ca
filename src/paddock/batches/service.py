"""Files and batches of all keys: what the HTTP routes call. Opened when it is first needed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import structlog

from paddock.batches.active import Options
from paddock.batches.backend import Backend
from paddock.batches.preparation import add_lines
from paddock.batches.records import Batch, Dialect, Mistake, NewBatch, StoredFile, new_id
from paddock.batches.runner import Runner
from paddock.batches.store import Store
from paddock.batches.validation import Validator
from paddock.errors import BatchesUnavailable, PaddockError, QuotaExceeded, RequestTooLarge, StartupError, StorageFull
from paddock.receipts import SigningKey
from paddock.storage import DataFolder, StoreThread

_log = structlog.get_logger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Quotas:
    """Of one key."""

    files: int = 10_000
    bytes: int = 64 * 1024**3
    file_bytes: int = 8 * 1024**3
    """The largest file."""


@dataclass(frozen=True, slots=True)
class Page:
    after: str | None = None
    limit: int = 20
    ascending: bool = False


class Batches:
    def __init__(
        self,
        folder: DataFolder,
        backend: Backend,
        options: Options,
        quotas: Quotas,
        key: SigningKey | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`key` signs the receipts of lines."""
        self._folder = folder
        self._backend = backend
        self._options = options
        self._quotas = quotas
        self._key = key
        self._clock = clock
        self._thread = StoreThread("batches")
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._stopped = False
        self._uploading: Counter[str] = Counter()
        """Bytes of uploads that are not complete, by owner."""
        self.runner: Runner | None = None

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def lock_now(self) -> None:
        """Take the folder before the server starts. Raises `StartupError`."""
        try:
            self._folder.lock()
        except BatchesUnavailable as error:
            raise StartupError(error.message) from None

    async def resume(self) -> bool:
        """Continue what an earlier server left, if there is anything. False: another server has the folder."""
        if not self._folder.database.exists():
            return True
        try:
            await self._open()
        except PaddockError as error:
            _log.warning("batches of an earlier server do not continue", error=error.message)
            return False
        return True

    async def stop(self) -> None:
        """Stop running lines. They are run again after the next start."""
        self._stopped = True
        async with self._opening:
            if self.runner is not None:
                try:
                    await self.runner.stop()
                except (sqlite3.Error, OSError) as error:
                    _log.error("results were not written: their lines will be run again", error=str(error))

    async def close(self) -> None:
        await self.stop()
        if self._store is not None:
            await self._thread.call(self._store.close)
        await asyncio.to_thread(self._thread.close)
        self._folder.unlock()

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def upload(self, owner: str) -> Upload:
        """A new file. Raises `QuotaExceeded`."""
        store = await self._open()
        count, size = await self._call(store.files.used_by, owner)
        if count >= self._quotas.files:
            raise QuotaExceeded(
                f"this key has {count} files; the limit is {self._quotas.files} (batches.max_files_per_key): delete "
                "some"
            )
        room = _Room(owner, self._quotas, size, self._uploading)
        return Upload(store, room, new_id("file-"), self._call, lambda: int(self._clock()))

    async def file(self, owner: str, id: str) -> StoredFile:
        return await self._call((await self._open()).files.get, owner, id)

    async def files(self, owner: str, page: Page, purpose: str | None) -> tuple[list[StoredFile], bool]:
        store = await self._open()
        return await self._call(
            store.files.page, owner, after=page.after, limit=page.limit, purpose=purpose, ascending=page.ascending
        )

    async def content(self, owner: str, id: str) -> Path:
        """The path of a file's content."""
        await self.file(owner, id)
        return self._folder.file(id)

    def result_paths(self, batch: Batch) -> list[Path]:
        """The result files of a batch, which may be missing."""
        return [self._folder.file(file) for file in (batch.output_file, batch.error_file)]

    async def delete_file(self, owner: str, id: str) -> None:
        await self._call((await self._open()).delete_file, owner, id)

    # ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, owner: str, new: NewBatch) -> Batch:
        """The input file must exist. It is validated later."""
        store, batch = await self._open(), new.begun(owner, int(self._clock()))
        await self._start(store, batch)
        return batch

    async def create_valid(self, owner: str, new: NewBatch) -> tuple[Batch, list[Mistake]]:
        """The same, for an API that refuses mistakes at once: then nothing is created, and the input file is deleted.
        The file must be small. Every request of the batch has a result, however it ends. Raises `QuotaExceeded`.
        """
        store, batch = await self._open(), new.begun(owner, int(self._clock()))
        try:
            total, mistakes = await asyncio.to_thread(self._add_lines, store, batch)
            if not mistakes:
                batch = msgspec.structs.replace(batch, total=total)
                await self._start(store, batch, self._options.most_waiting)
        except PaddockError:
            await self._call(_discard, store, batch)
            raise
        if mistakes:
            await self._call(_discard, store, batch)
        return batch, mistakes

    def _add_lines(self, store: Store, batch: Batch) -> tuple[int, list[Mistake]]:
        """Store the lines of a batch that is not stored yet. Returns their number, and the mistakes."""
        validator = Validator(batch.endpoint, self._backend.check(batch), longest=self._options.longest_body)
        try:
            for _ in add_lines(batch, store, self._thread.wait_for, validator):
                pass
        except (sqlite3.Error, OSError) as error:
            raise storage_error(error) from None
        return validator.total, validator.report()

    async def _start(self, store: Store, batch: Batch, most_waiting: int | None = None) -> None:
        await self._call(store.add_batch, batch, most_waiting)
        if self.runner is not None:
            self.runner.update(batch)

    async def batch(self, owner: str, id: str, dialect: Dialect) -> Batch:
        return await self._call((await self._open()).batch, owner, id, dialect)

    async def batches(self, owner: str, dialect: Dialect, page: Page) -> tuple[list[Batch], bool]:
        store = await self._open()
        return await self._call(
            store.batches, owner, dialect, after=page.after, limit=page.limit, ascending=page.ascending
        )

    async def cancel(self, owner: str, id: str, dialect: Dialect) -> Batch:
        store = await self._open()
        batch = await self._call(store.cancel, owner, id, dialect, int(self._clock()))
        if self.runner is not None and not batch.has_ended:
            self.runner.update(batch)
        return batch

    async def delete(self, owner: str, id: str, dialect: Dialect) -> None:
        await self._call((await self._open()).delete_batch, owner, id, dialect)

    def waiting_for(self, id: str) -> str | None:
        return None if self.runner is None else self.runner.waiting_for(id)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _open(self) -> Store:
        if self._store is not None:
            return self._store
        async with self._opening:
            if self._store is None:
                if self._stopped:
                    raise BatchesUnavailable("the server is stopping")
                store = await self._thread.call(self._open_store)
                self.runner = Runner(store, self._thread, self._backend, self._options, self._clock)
                # It outlives the request that opened the store, whose id and context its lines must not have.
                await asyncio.create_task(self.runner.start(), context=Context())
                self._store = store
        return self._store

    def _open_store(self) -> Store:
        self._folder.lock()
        return Store(self._folder, self._key)

    async def _call(self, operation: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await self._thread.call(operation, *args, **kwargs)
        except (sqlite3.Error, OSError) as error:
            raise storage_error(error) from None


@dataclass(slots=True)
class _Room:
    """What a key may still store."""

    owner: str
    quotas: Quotas
    used: int
    """Bytes of complete files."""
    uploading: Counter[str]

    def take(self, size: int, before: int) -> None:
        """A file of `before` bytes grows by `size`. Raises `RequestTooLarge` or `QuotaExceeded`."""
        if before + size > self.quotas.file_bytes:
            raise RequestTooLarge(f"the file has more than {self.quotas.file_bytes} bytes (batches.max_file_bytes)")
        if self.used + self.uploading[self.owner] + size > self.quotas.bytes:
            raise QuotaExceeded(
                f"the files of this key would have more than {self.quotas.bytes} bytes (batches.max_bytes_per_key): "
                "delete some"
            )
        self.uploading[self.owner] += size

    def release(self, size: int) -> None:
        self.uploading[self.owner] -= size
        if not self.uploading[self.owner]:
            del self.uploading[self.owner]


class Upload:
    """A file that is being received: in pieces, onto the disk. Call `finish` or `abort` at the end."""

    def __init__(
        self,
        store: Store,
        room: _Room,
        id: str,
        call: Callable[[Callable[[StoredFile], None], StoredFile], Awaitable[None]],
        now: Callable[[], int],
    ) -> None:
        """`call` runs an operation of the store on its thread."""
        self._store = store
        self._room = room
        self._id = id
        self._call = call
        self._now = now
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._file: int | None = None
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Raises `QuotaExceeded`, `RequestTooLarge` or `StorageFull`."""
        self._room.take(len(data), self.size)
        self._pieces.append(data)
        self.size += len(data)
        self._buffered += len(data)
        if self._buffered >= _PIECE:
            await self._flush()

    async def finish(self, name: str, *, keep: int | None = None, hidden: bool = False) -> StoredFile:
        """`keep`: the file is deleted after so many seconds."""
        await self._flush(sync=True)
        now = self._now()
        expires_at = None if keep is None else now + keep
        file = StoredFile(self._id, self._room.owner, name, "batch", self.size, now, expires_at, hidden)
        await self._call(self._store.files.add, file)
        self._release()
        return file

    async def abort(self) -> None:
        """Delete what was received."""
        await asyncio.to_thread(self._close, remove=True)
        self._release()

    def _release(self) -> None:
        self._room.release(self.size)
        self.size = 0

    async def _flush(self, *, sync: bool = False) -> None:
        pieces, self._pieces, self._buffered = self._pieces, [], 0
        try:
            await asyncio.to_thread(self._write, pieces, sync=sync)
        except OSError as error:
            raise storage_error(error) from None

    def _write(self, pieces: Sequence[bytes], *, sync: bool) -> None:
        if self._file is None:
            path = self._store.folder.upload(self._id)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(self._file, view) :]
        if sync:
            os.fsync(self._file)
            self._close()

    def _close(self, *, remove: bool = False) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if remove:
            self._store.folder.upload(self._id).unlink(missing_ok=True)


def _discard(store: Store, batch: Batch) -> None:
    """Remove what was stored for a batch that is not created."""
    store.remove_lines(batch.id)
    store.files.remove(batch.input_file)


def storage_error(error: Exception) -> StorageFull:
    _log.error("the data folder cannot be written", error=str(error))
    return StorageFull(f"the server cannot store this: {error.strerror if isinstance(error, OSError) else error}")
