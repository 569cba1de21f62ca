"""The section `responses`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paddock.config.fields import Flag, Section, Size


class ResponseSettings(Section):
    """Stored responses and conversations, which clients of the responses API continue by their ids."""

    store: Annotated[bool, Flag("--store-responses/--no-store-responses")] = True
    """Store responses in the data folder unless a request says `store: false`. Otherwise nothing is stored, and
    requests cannot name an earlier response."""
    keep_days: int = Field(30, ge=1, le=3650)
    """Responses and conversations that were not used for so many days are removed."""
    max_bytes_per_key: Size = 256 * 1024**2
    """The most bytes of responses and conversations of one key. What was not used for longest is removed first."""
