"""What is stored. Items are the JSON objects of OpenAI's API, which the gateway reads."""

from __future__ import annotations

import secrets
from typing import Any, TypeAlias

import msgspec

Item: TypeAlias = dict[str, Any]
"""A message, a function call, its result, or reasoning. It has an `id`."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    previous: str | None = None
    """The response that this one continues."""
    conversation: str | None = None
    input: list[Item]
    """Only what this request added."""
    response: Item
    """The answer as it was sent."""

    @property
    def output(self) -> list[Item]:
        items: list[Item] = self.response["output"]
        return items


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    metadata: dict[str, str] = {}


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(16)
