"""The servers under load, as they are asked: what one does not take is found out first, and done without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paddock_lab.client import Answer, ChatFailed, build_info, count_tokens, first_model, stream
from paddock_lab.servers import Server
from paddock_lab.words import Message, user

_REFUSED = (400, 422)
_LEFT_OUT = {
    "stream_options": "so its tokens are counted by events",
    "ignore_eos": "so its answers may be shorter than asked for",
}


@dataclass
class Target:
    server: Server
    model: str
    about: str
    temperature: float
    ignore_eos: bool
    usage: bool = True
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
    ) -> Answer:
        """Raises ChatFailed or OSError."""
        return await stream(
            self.server.address,
            self.body(messages, tokens),
            on_event,
            usage=self.usage,
            may_be_empty=True,
            leave_after=leave_after,
        )

    def count_tokens(self, text: str) -> int | None:
        return asyncio.run(count_tokens(self.server.address, self.model, text))


async def meet(server: Server, *, model: str, temperature: float, ignore_eos: bool) -> Target:
    """Ask a server for a word, at first with everything that we like to have. Raises ChatFailed or OSError."""
    source, build = server.entrant.source, await build_info(server.address)
    about = f"{source} ({build})" if build else source
    target = Target(server, model or await first_model(server.address), about, temperature, ignore_eos)
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
