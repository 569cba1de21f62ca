"""Stored responses and conversations, as the HTTP routes use them. Opened when the first one is stored or asked for."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from paddock.conversations.records import Conversation, Item, StoredResponse, new_id
from paddock.conversations.store import ConversationStore
from paddock.errors import BatchesUnavailable, PaddockError, StorageFull
from paddock.storage import DataFolder, StoreThread

_log = structlog.get_logger(__name__)
_EXPIRY_SECONDS: Final = 3600.0
"""Between two searches for what has expired."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    bytes_per_key: int
    bytes_read: int
    """The most that one request may continue: as much as it could send."""
    seconds: int
    """What was not used for so long is removed."""


class Conversations:
    def __init__(self, folder: DataFolder, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._thread = StoreThread("conversations")
        self._store: ConversationStore | None = None
        self._next_expiry = 0.0

    async def close(self) -> None:
        if self._store is not None:
            await self._thread.call(self._store.close)
        await asyncio.to_thread(self._thread.close)

    # ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def keep(self, owner: str, stored: StoredResponse) -> None:
        """Raises `StorageFull` or `BatchesUnavailable`."""
        await self._call(lambda store, now: store.add_response(owner, stored, now))

    async def response(self, owner: str, id: str) -> StoredResponse:
        """Raises `NotFound`."""
        return await self._call(lambda store, now: store.response(owner, id, now))

    async def chain(self, owner: str, last: str) -> list[StoredResponse]:
        """A response and all that it continues, the first one first. Raises `NotFound`."""
        return await self._call(lambda store, now: store.chain(owner, last, now))

    async def delete_response(self, owner: str, id: str) -> None:
        """Raises `NotFound`."""
        await self._call(lambda store, now: store.delete_response(owner, id, now))

    # ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, owner: str, items: Sequence[Item], metadata: dict[str, str]) -> Conversation:
        created = Conversation(id=new_id("conv_"), created_at=int(self._clock()), metadata=metadata)
        await self._call(lambda store, now: store.add_conversation(owner, created, items, now))
        return created

    async def conversation(self, owner: str, id: str) -> Conversation:
        """Raises `NotFound`."""
        return await self._call(lambda store, now: store.conversation(owner, id, now))

    async def update(self, owner: str, id: str, metadata: dict[str, str]) -> Conversation:
        """Raises `NotFound`."""
        return await self._call(lambda store, now: store.update_conversation(owner, id, metadata, now))

    async def delete(self, owner: str, id: str) -> None:
        """Raises `NotFound`."""
        await self._call(lambda store, now: store.delete_conversation(owner, id, now))

    async def items(self, owner: str, id: str) -> list[Item]:
        """All items, the oldest first. Raises `NotFound`."""
        return await self._call(lambda store, now: store.items(owner, id, now))

    async def item(self, owner: str, id: str, item: str) -> Item:
        """Raises `NotFound`."""
        return await self._call(lambda store, now: store.item(owner, id, item, now))

    async def add_items(self, owner: str, id: str, items: Sequence[Item]) -> None:
        """Raises `NotFound`, or `InvalidRequest` if an id is used already."""
        await self._call(lambda store, now: store.add_items(owner, id, items, now))

    async def delete_item(self, owner: str, id: str, item: str) -> None:
        """Raises `NotFound`."""
        await self._call(lambda store, now: store.delete_item(owner, id, item, now))

    # ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, operation: Callable[[ConversationStore, int], _T]) -> _T:
        return await self._thread.call(self._run, operation)

    def _run(self, operation: Callable[[ConversationStore, int], _T]) -> _T:
        """On the thread."""
        now = self._clock()
        try:
            if self._store is None:
                self._store = self._open()
            if now >= self._next_expiry:
                self._next_expiry = now + _EXPIRY_SECONDS
                self._store.remove_expired(int(now))
            return operation(self._store, int(now))
        except PaddockError:
            raise
        except (sqlite3.Error, OSError) as error:
            _log.error("the data folder cannot be written", error=str(error))
            raise StorageFull(f"the server cannot store this: {error}") from None

    def _open(self) -> ConversationStore:
        self._folder.lock()
        try:
            return ConversationStore(
                self._folder.database,
                most_bytes=self._limits.bytes_per_key,
                most_read=self._limits.bytes_read,
                seconds=self._limits.seconds,
            )
        except sqlite3.Error as error:
            raise BatchesUnavailable(f"cannot use {self._folder.database}: {error}") from None
