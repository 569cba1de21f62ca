"""A server with a model. Fields that the server refuses are found at the start and left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from paddock_lab.client import Answer, ChatFailed, build_info, count_tokens, first_model, stream
from paddock_lab.servers import Server
from paddock_lab.words import Message, user

_REFUSED = (400, 422)
_LEFT_OUT = {
    "stream_options": "so its tokens are counted by events",
    "ignore_eos": "so its answers may be shorter than requested",
}


@dataclass
class Target:
    server: Server
    model: str
    """The model's name in requests."""
    about: str
    """The command or URL, and the version if the server reports one."""
    temperature: float = 0.0
    ignore_eos: bool = False
    usage: bool = True
    """Request the number of tokens."""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.server.name

    def body(self, messages: list[Message], tokens: int) -> dict[str, Any]:
        body = {"model": self.model, "messages": messages, "max_tokens": tokens, "temperature": self.temperature}
        return body | {"ignore_eos": True} if self.ignore_eos else body

    async def ask(
        self,
        messages: list[Message],
        tokens: int,
        on_event: Callable[[int], object] | None = None,
        leave_after: int | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> Answer:
        """`more`: further fields of the request. Raises ChatFailed or OSError."""
        return await stream(
            self.server.address,
            self.body(messages, tokens) | dict(more),
            on_event,
            usage=self.usage,
            may_be_empty=True,
            leave_after=leave_after,
        )

    def count_tokens(self, text: str) -> int | None:
        return asyncio.run(count_tokens(self.server.address, self.model, text))


async def identify(server: Server, model: str) -> Target:
    """The server with this model, or with the first one that it lists."""
    source, build = server.entrant.source, await build_info(server.address)
    return Target(server, model or await first_model(server.address), f"{source} ({build})" if build else source)


async def connect(server: Server, *, model: str, temperature: float, ignore_eos: bool) -> Target:
    """Send one short request with all optional fields, then without those that the server refuses.

    Raises ChatFailed or OSError.
    """
    target = replace(await identify(server, model), temperature=temperature)
    for usage, ending in ((True, ignore_eos), (False, ignore_eos), (True, False), (False, False)):
        target.usage, target.ignore_eos = usage, ending
        try:
            await target.ask([user("Good morning.")], 1)
        except ChatFailed as refusal:
            if refusal.status not in _REFUSED or not (usage or ending):
                raise
        else:
            break
    refused = [*(["stream_options"] if not target.usage else []), *(["ignore_eos"] if ending < ignore_eos else [])]
    target.notes = [f"{target.name} refuses {name}, {_LEFT_OUT[name]}" for name in refused]
    return target
