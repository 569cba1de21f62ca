"""The server, as batches see it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from paddock.batches.decisions import ModelView
from paddock.batches.records import Batch, Line
from paddock.batches.validation import Check


class Reply(msgspec.Struct, frozen=True):
    """The response to one line."""

    status: int
    """0: there was none."""
    body: bytes
    request_id: str = ""
    code: str | None = None
    """Of an error."""
    message: str = ""
    retry_after: float | None = None


class Backend(Protocol):
    """The server, as far as batches need it."""

    def view(self, batch: Batch) -> ModelView: ...

    def may_run(self, batch: Batch) -> str | None:
        """Why no line may be run for the owner, or None."""

    def identity(self, model: str) -> str | None:
        """The identity of the model's files; None if no such model is served. Looks at the disk."""

    def check(self, batch: Batch) -> Check:
        """The validation of the bodies of this batch."""

    async def run(self, batch: Batch, line: Line, body: bytes, *, load: bool) -> Reply: ...
