"""Responses and conversations of all keys, in the SQLite file of the data folder. Used by one thread.

What was not used for a while is removed, and so is the oldest when a key has too much.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from paddock.conversations.records import Conversation, Item, StoredResponse
from paddock.errors import InvalidRequest, NotFound
from paddock.storage import transaction

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS responses (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, used_at INTEGER NOT NULL,
    size INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_of_owner ON responses (owner, used_at);
CREATE TABLE IF NOT EXISTS conversations (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, used_at INTEGER NOT NULL,
    size INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS conversations_of_owner ON conversations (owner, used_at);
CREATE TABLE IF NOT EXISTS conversation_items (
    seq INTEGER PRIMARY KEY, conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    id TEXT NOT NULL, record BLOB NOT NULL, UNIQUE (conversation, id)
);
"""
_WAIT_SECONDS: Final = 30.0
"""For a transaction of a batch, which uses the same file."""
_REMOVED_AT_ONCE = 100
_encode = msgspec.json.Encoder().encode
_response = msgspec.json.Decoder(StoredResponse).decode
_conversation = msgspec.json.Decoder(Conversation).decode
_item = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. `after` is the id of the last entry of the page before."""

    after: str | None = None
    limit: int = 20
    ascending: bool = False

    def of(self, items: Sequence[Item]) -> tuple[list[Item], bool]:
        """The page of a list in ascending order, and whether there are more. Raises `InvalidRequest`."""
        ordered = list(items) if self.ascending else list(reversed(items))
        start = 0
        if self.after is not None:
            ids = [item.get("id") for item in ordered]
            if self.after not in ids:
                raise InvalidRequest(f"there is no item {self.after!r} to continue after", param="after")
            start = ids.index(self.after) + 1
        return ordered[start : start + self.limit], len(ordered) > start + self.limit


class ConversationStore:
    def __init__(self, database: Path, *, most_bytes: int, most_read: int, seconds: int) -> None:
        """`most_bytes` of one key are kept, for so many `seconds` after their last use, and `most_read` of them are
        read at once. Raises `sqlite3.Error`.
        """
        self._most_read = most_read
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._db = sqlite3.connect(database, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA foreign_keys = ON")
            with transaction(self._db):
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._db.execute(statement)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    # ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add_response(self, owner: str, stored: StoredResponse, now: int) -> None:
        """And its items to its conversation, if that still exists."""
        record = _encode(stored)
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO responses (id, owner, used_at, size, record) VALUES (?, ?, ?, ?, ?)",
                (stored.id, owner, now, len(record), record),
            )
            if stored.conversation is not None and self._touch("conversations", owner, stored.conversation, now):
                self._append(stored.conversation, [*stored.input, *stored.output])
            self._remove_oldest(owner, keep=stored.conversation)

    def response(self, owner: str, id: str, now: int) -> StoredResponse:
        """Raises `NotFound`."""
        if (record := self._record("responses", owner, id, now)) is None:
            raise NotFound(f"there is no stored response {id!r}", param="response_id")
        return _response(record)

    def chain(self, owner: str, last: str, now: int) -> list[StoredResponse]:
        """A response and all that it continues, the first one first. Marks them as used. Raises `NotFound`, or
        `InvalidRequest` if they are too large.
        """
        found: list[StoredResponse] = []
        size = 0
        id: str | None = last
        while id is not None:
            if (record := self._record("responses", owner, id, now)) is None:
                which = f"{id!r}, which {found[-1].id!r} continues," if found else f"{id!r}"
                raise NotFound(
                    f"previous_response_id: the response {which} is not stored: it was deleted, has expired, or was "
                    "made without `store`",
                    param="previous_response_id",
                )
            size += len(record)
            self._check_size(size, "previous_response_id")
            found.append(_response(record))
            id = found[-1].previous
        with transaction(self._db):
            for stored in found:
                self._touch("responses", owner, stored.id, now)
        return found[::-1]

    def delete_response(self, owner: str, id: str, now: int) -> None:
        """Raises `NotFound`."""
        self.response(owner, id, now)
        with transaction(self._db):
            self._db.execute("DELETE FROM responses WHERE id = ?", (id,))

    # ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────

    def add_conversation(self, owner: str, conversation: Conversation, items: Sequence[Item], now: int) -> None:
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO conversations (id, owner, used_at, size, record) VALUES (?, ?, ?, 0, ?)",
                (conversation.id, owner, now, _encode(conversation)),
            )
            self._append(conversation.id, items)
            self._remove_oldest(owner, keep=conversation.id)

    def conversation(self, owner: str, id: str, now: int) -> Conversation:
        """Raises `NotFound`."""
        if (record := self._record("conversations", owner, id, now)) is None:
            raise NotFound(f"there is no conversation {id!r}", param="conversation")
        return _conversation(record)

    def update_conversation(self, owner: str, id: str, metadata: dict[str, str], now: int) -> Conversation:
        """Raises `NotFound`."""
        changed = msgspec.structs.replace(self.conversation(owner, id, now), metadata=metadata)
        with transaction(self._db):
            self._db.execute("UPDATE conversations SET record = ? WHERE id = ?", (_encode(changed), id))
        return changed

    def delete_conversation(self, owner: str, id: str, now: int) -> None:
        """With its items; its responses are kept. Raises `NotFound`."""
        self.conversation(owner, id, now)
        with transaction(self._db):
            self._db.execute("DELETE FROM conversations WHERE id = ?", (id,))

    def add_items(self, owner: str, id: str, items: Sequence[Item], now: int) -> None:
        """Raises `NotFound`, or `InvalidRequest` if the conversation has an item with the same id."""
        self.conversation(owner, id, now)
        with transaction(self._db):
            self._touch("conversations", owner, id, now)
            self._append(id, items)
            self._remove_oldest(owner, keep=id)

    def items(self, owner: str, id: str, now: int) -> list[Item]:
        """All items, the oldest first. Raises `NotFound`, or `InvalidRequest` if they are too large."""
        self.conversation(owner, id, now)
        (size,) = self._db.execute("SELECT size FROM conversations WHERE id = ?", (id,)).fetchone()
        self._check_size(size, "conversation")
        rows = self._db.execute("SELECT record FROM conversation_items WHERE conversation = ? ORDER BY seq", (id,))
        return [_item(row[0]) for row in rows]

    def item(self, owner: str, id: str, item: str, now: int) -> Item:
        """Raises `NotFound`."""
        self.conversation(owner, id, now)
        row = self._db.execute(
            "SELECT record FROM conversation_items WHERE conversation = ? AND id = ?", (id, item)
        ).fetchone()
        if row is None:
            raise _no_item(id, item)
        return _item(row[0])

    def delete_item(self, owner: str, id: str, item: str, now: int) -> None:
        """Raises `NotFound`."""
        self.conversation(owner, id, now)
        with transaction(self._db):
            rows = self._db.execute(
                "DELETE FROM conversation_items WHERE conversation = ? AND id = ? RETURNING LENGTH(record)", (id, item)
            ).fetchall()
            if not rows:
                raise _no_item(id, item)
            self._db.execute("UPDATE conversations SET size = size - ? WHERE id = ?", (rows[0][0], id))

    def _append(self, conversation: str, items: Sequence[Item]) -> None:
        records = [(conversation, str(item["id"]), _encode(item)) for item in items]
        try:
            self._db.executemany("INSERT INTO conversation_items (conversation, id, record) VALUES (?, ?, ?)", records)
        except sqlite3.IntegrityError:
            raise InvalidRequest("the conversation has an item with one of these ids already", param="items") from None
        size = sum(len(record) for _, _, record in records)
        self._db.execute("UPDATE conversations SET size = size + ? WHERE id = ?", (size, conversation))

    def _check_size(self, size: int, param: str) -> None:
        if size > self._most_read:
            raise InvalidRequest(
                f"{param}: what is stored of this conversation has more than {self._most_read} bytes, the limit of a "
                "body (server.max_body_bytes)",
                param=param,
            )

    # ── age and size ─────────────────────────────────────────────────────────────────────────────────────────────────

    def used_by(self, owner: str) -> int:
        """The bytes of the owner's responses and conversations."""
        row = self._db.execute(
            "SELECT COALESCE((SELECT SUM(size) FROM responses WHERE owner = :owner), 0)"
            " + COALESCE((SELECT SUM(size) FROM conversations WHERE owner = :owner), 0)",
            {"owner": owner},
        ).fetchone()
        return int(row[0])

    def remove_expired(self, now: int) -> None:
        with transaction(self._db):
            for table in ("responses", "conversations"):
                self._db.execute(f"DELETE FROM {table} WHERE used_at <= ?", (now - self._seconds,))  # noqa: S608

    def _remove_oldest(self, owner: str, *, keep: str | None) -> None:
        """The responses first that were not used for longest, then conversations, but not `keep`."""
        over = self.used_by(owner) - self._most_bytes
        for table in ("responses", "conversations"):
            while over > 0:
                rows = self._db.execute(
                    f"SELECT id, size FROM {table} WHERE owner = ? AND id IS NOT ?"  # noqa: S608
                    " ORDER BY used_at, seq LIMIT ?",
                    (owner, keep, _REMOVED_AT_ONCE),
                ).fetchall()
                if not rows:
                    break
                for id, size in rows:
                    if over > 0:
                        self._db.execute(f"DELETE FROM {table} WHERE id = ?", (id,))  # noqa: S608
                        over -= size

    def _record(self, table: str, owner: str, id: str, now: int) -> bytes | None:
        row = self._db.execute(
            f"SELECT record FROM {table} WHERE id = ? AND owner = ? AND used_at > ?",  # noqa: S608 (our own text)
            (id, owner, now - self._seconds),
        ).fetchone()
        return None if row is None else row[0]

    def _touch(self, table: str, owner: str, id: str, now: int) -> bool:
        changed = self._db.execute(
            f"UPDATE {table} SET used_at = MAX(used_at, ?) WHERE id = ? AND owner = ?",  # noqa: S608 (our own text)
            (now, id, owner),
        )
        return changed.rowcount > 0


def _no_item(conversation: str, item: str) -> NotFound:
    return NotFound(f"the conversation {conversation!r} has no item {item!r}", param="item_id")
