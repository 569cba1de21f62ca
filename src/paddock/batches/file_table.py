"""The table of files, uploaded ones and results, together with what lies on the disk."""

from __future__ import annotations

import msgspec

from paddock.batches.database import Database
from paddock.batches.records import StoredFile
from paddock.errors import NotFound
from paddock.storage import DataFolder

_file = msgspec.json.Decoder(StoredFile)


class FileTable:
    def __init__(self, db: Database, folder: DataFolder) -> None:
        self._db = db
        self._folder = folder

    def add(self, file: StoredFile) -> None:
        """Take over a complete upload."""
        self._folder.upload(file.id).replace(self._folder.file(file.id))
        with self._db.transaction():
            self.insert(file)

    def get(self, owner: str, id: str) -> StoredFile:
        """Raises `NotFound`."""
        row = self._db.execute("SELECT record FROM files WHERE id = ? AND owner = ? AND hidden = 0", (id, owner))
        if (found := row.fetchone()) is None:
            raise NotFound(f"there is no file {id!r}", param="file_id")
        return _file.decode(found[0])

    def page(
        self, owner: str, *, after: str | None, limit: int, purpose: str | None = None, ascending: bool = False
    ) -> tuple[list[StoredFile], bool]:
        """A page of the owner's files, the newest first, and whether there are more."""
        where = "owner = :owner AND hidden = 0 AND (:purpose IS NULL OR purpose = :purpose)"
        values = {"owner": owner, "purpose": purpose}
        rows, more = self._db.page("files", where, values, after, limit, ascending=ascending)
        return [_file.decode(row) for row in rows], more

    def used_by(self, owner: str) -> tuple[int, int]:
        """The number of the owner's files, and their bytes."""
        row = self._db.execute("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM files WHERE owner = ?", (owner,))
        count, size = row.fetchone()
        return count, size

    def expired(self, now: int) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT id FROM files WHERE expires_at <= ?", (now,)).fetchall()]

    def ids(self) -> set[str]:
        return {row[0] for row in self._db.execute("SELECT id FROM files")}

    def insert(self, file: StoredFile) -> None:
        """Within a transaction. The file is at its place already."""
        self._db.execute(
            "INSERT INTO files (id, owner, purpose, size, expires_at, hidden, record) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (file.id, file.owner, file.purpose, file.size, file.expires_at, file.hidden, msgspec.json.encode(file)),
        )

    def remove(self, id: str) -> None:
        """Delete a file that nothing uses."""
        with self._db.transaction():
            self._db.execute("DELETE FROM files WHERE id = ?", (id,))
        self._folder.file(id).unlink(missing_ok=True)
