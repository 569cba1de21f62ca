"""One turn of a stored conversation: what came before it, and where its answer is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from paddock.conversations import Conversations, Item, StoredResponse
from paddock.errors import PaddockError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    history: Sequence[Any] = ()
    """The items of earlier turns."""
    previous: str | None = None
    conversation: str | None = None
    place: Conversations | None = None
    """Where the answer is stored, if anywhere."""
    owner: str = ""
    input: Sequence[Item] = ()
    """What this request adds."""
    is_required: bool = False
    """The request asks for it: an answer that cannot be stored is an error."""

    async def keep(self, id: str, response: msgspec.Struct) -> bool:
        """Store the answer. Returns whether it is stored. Raises `StorageFull` or `BatchesUnavailable`."""
        if self.place is None:
            return False
        stored = StoredResponse(
            id=id,
            previous=self.previous,
            conversation=self.conversation,
            input=list(self.input),
            response=msgspec.to_builtins(response),
        )
        try:
            await self.place.keep(self.owner, stored)
        except PaddockError as error:
            if self.is_required:
                raise
            _log.warning("a response is not stored", response=id, error=error.message)
            return False
        return True
