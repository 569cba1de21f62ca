"""The interface of what is measured, and its implementation for OpenAI-compatible servers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from paddock_lab.client import Answer, ChatFailed, bits_per_weight, count_tokens, look, stream
from paddock_lab.servers import Server
from paddock_lab.targets import identify
from paddock_lab.words import Message

_REFUSED = (400, 422)
T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """None: the server does not report it."""

    first_token: float
    """Seconds."""
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


class Backend(Protocol):
    name: str
    about: str
    bits_per_weight: float | None
    """The quantization of its model; None if unknown."""
    notes: list[str]

    def ask(self, messages: list[Message], max_tokens: int) -> Reply:
        """Raises ChatFailed, OSError or TimeoutError."""
        ...

    def cached_prompt_tokens(self) -> int | None:
        """Tokens of a prompt that it reports to have cached; of several prompts, the largest number."""
        ...

    def count_tokens(self, text: str) -> int | None: ...


class HttpBackend:
    """A server over HTTP, with one request at a time."""

    def __init__(self, server: Server, *, model: str, slot: int | None, seconds: float) -> None:
        self.name, self._address, self._seconds = server.name, server.address, seconds
        self.notes: list[str] = []
        self._usage = True
        self._slots = isinstance(self._run(look(self._address, "/slots")), list)
        target = self._run(identify(server, model))
        self.about = target.about
        self._body: dict[str, Any] = {"model": target.model, "temperature": 0.0}
        self.bits_per_weight = self._run(bits_per_weight(self._address, target.model))
        if slot is not None and self._slots:
            self._body["id_slot"] = slot
        elif slot is not None:
            self.notes.append(f"{self.name} has no /slots, so its requests are not pinned to a slot")

    def ask(self, messages: list[Message], max_tokens: int) -> Reply:
        body = {**self._body, "messages": messages, "max_tokens": max_tokens}
        try:
            answer = self._stream(body, usage=self._usage)
        except ChatFailed as refusal:
            if not self._usage or refusal.status not in _REFUSED:
                raise
            answer = self._stream(body, usage=False)
            self._usage = False
            self.notes.append(f"{self.name} refuses stream_options, so it does not report prompt tokens")
        return Reply(answer.first_token, answer.prompt_tokens, answer.cached_tokens, answer.output_tokens)

    def cached_prompt_tokens(self) -> int | None:
        """`n_past`, or `n_prompt_tokens` of newer llama-servers, of the pinned slot or of all slots."""
        slots = self._run(look(self._address, "/slots")) if self._slots else None
        if not isinstance(slots, list):
            return None
        asked = [slot for slot in slots if slot.get("id") == self._body.get("id_slot", slot.get("id"))]
        found = [slot.get("n_past", slot.get("n_prompt_tokens")) for slot in asked]
        return max((int(tokens) for tokens in found if tokens is not None), default=None)

    def count_tokens(self, text: str) -> int | None:
        return self._run(count_tokens(self._address, self._body["model"], text))

    def _stream(self, body: dict[str, Any], *, usage: bool) -> Answer:
        return self._run(stream(self._address, body, usage=usage, may_be_empty=True))

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(self._seconds):
                return await action

        return asyncio.run(bounded())
