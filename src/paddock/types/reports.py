"""Why a prompt was or was not found in the cache."""

from __future__ import annotations

from typing import Literal

import msgspec

CacheReason = Literal["hit", "extended", "changed", "evicted", "not_reusable", "new", "off"]


class Nearest(msgspec.Struct, frozen=True):
    """The known prefix that shares most with a prompt."""

    length: int = 0
    """How many tokens both share."""
    following: list[int] = []
    """The next tokens of the known one; empty if it ends there."""


class ReusedTokens(msgspec.Struct, frozen=True):
    """Prompt tokens that were not computed, by where they were."""

    cells: int = 0
    """In the context of the model."""
    host: int = 0
    """In host memory (`cache_ram`)."""
    disk: int = 0

    @property
    def total(self) -> int:
        return self.cells + self.host + self.disk


class MessagePlace(msgspec.Struct, frozen=True):
    """A place in a conversation."""

    index: int
    """The number of the message, from 0, as the chat template gets them."""
    role: str
    character: int | None
    """The character of its content, from 0; null where that cannot be determined: in its header or its tool calls."""


class PartingPlace(msgspec.Struct, frozen=True):
    """Where a prompt differs from the nearest known one."""

    token: int
    character: int
    """The character of the rendered prompt, from 0."""
    message: MessagePlace | None
    """Null for a prompt without messages, and for a place that belongs to no message."""
    tool: str | None
    """The tool definition in which it is."""
    text: str
    """The words of this prompt at that place."""
    known: str | None
    """The words of the known one. Null if they may belong to another key."""


class CacheReport(msgspec.Struct, frozen=True):
    """How much of a prompt was cached, and why not more."""

    summary: str
    """All of it in one or two sentences."""
    reason: CacheReason
    prompt_tokens: int
    reused: ReusedTokens
    computed: int
    """Prompt tokens that were computed."""
    evicted: int
    """Computed tokens that an earlier prompt had, and that were no longer cached."""
    not_reusable: int
    """Computed tokens that are cached, but could not be reused."""
    parted: PartingPlace | None
    """Null if no known prompt differs: this one is new, or goes on where the known one ends."""


class TenantCache(msgspec.Struct, frozen=True):
    """What a worker keeps for one tenant: tokens, and their bytes. A token may be both in cells and in host memory."""

    tenant: str
    cells: int = 0
    cell_bytes: int = 0
    host: int = 0
    host_bytes: int = 0


class ReportView(msgspec.Struct, frozen=True):
    """A report in the live view."""

    id: int
    """Later prompts have larger numbers."""
    key: str
    """The name of the request's key."""
    tenant: str
    report: CacheReport
