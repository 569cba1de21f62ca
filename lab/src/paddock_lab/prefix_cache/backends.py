"""Who is asked: any server that speaks OpenAI's dialect. What it does not have is found out and done without."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from paddock_lab.client import Answer, ChatFailed, bits_per_weight, build_info, count_tokens, first_model, look, stream
from paddock_lab.servers import Server
from paddock_lab.words import Message

_REFUSED = (400, 422)
T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """None stands for what the server does not tell."""

    first_token: float
    """Seconds."""
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


class Backend(Protocol):
    name: str
    about: str
    bits_per_weight: float | None
    """Of its model: how far it is quantised, where that is known."""
    notes: list[str]

    def ask(self, messages: list[Message], max_tokens: int) -> Reply:
        """Raises ChatFailed, OSError or TimeoutError."""
        ...

    def remembered(self) -> int | None:
        """How many tokens of one prompt it says to hold; the largest, if of several."""
        ...

    def count_tokens(self, text: str) -> int | None: ...


class HttpBackend:
    """One that is asked over HTTP, one request at a time."""

    def __init__(self, server: Server, *, model: str, slot: int | None, seconds: float) -> None:
        self.name, address, source = server.name, server.address, server.entrant.source
        self.notes: list[str] = []
        self._address, self._seconds = address, seconds
        self._usage = True
        self._slots = isinstance(self._run(look(address, "/slots")), list)
        self._body: dict[str, Any] = {"model": model or self._run(first_model(address)), "temperature": 0.0}
        self.bits_per_weight = self._run(bits_per_weight(address, self._body["model"]))
        build = self._run(build_info(address))
        self.about = f"{source} ({build})" if build else source
        if slot is not None and self._slots:
            self._body["id_slot"] = slot
        elif slot is not None:
            self.notes.append(f"{self.name} shows no slots, so its requests are not pinned to one")

    def ask(self, messages: list[Message], max_tokens: int) -> Reply:
        body = {**self._body, "messages": messages, "max_tokens": max_tokens}
        try:
            answer = self._stream(body, usage=self._usage)
        except ChatFailed as refusal:
            if not self._usage or refusal.status not in _REFUSED:
                raise
            answer = self._stream(body, usage=False)
            self._usage = False
            self.notes.append(f"{self.name} refuses stream_options, so it does not tell how many tokens a prompt has")
        return Reply(answer.first_token, answer.prompt_tokens, answer.cached_tokens, answer.output_tokens)

    def remembered(self) -> int | None:
        """`n_past`, or what newer servers of llama.cpp call it; of the slot that requests are pinned to, if any."""
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
