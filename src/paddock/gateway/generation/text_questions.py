"""Questions about text in all dialects: bounded, asked for a key, and given up when the client leaves."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request

from paddock.errors import InvalidRequest
from paddock.fleet import Fleet, Model
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.http.disconnect import until_disconnect
from paddock.types import ChatPrompt, CountTokens, TextQuestion
from paddock.wire import Text, Tokens


async def ask(request: Request, fleet: Fleet, model: Model, question: TextQuestion) -> Tokens | Text:
    return await until_disconnect(request, fleet.ask(model, question))


async def count_tokens(request: Request, fleet: Fleet, model: Model, prompt: ChatPrompt) -> int:
    """How many tokens the model would read this as."""
    refuse_long_chat(request, prompt)
    answer = await ask(request, fleet, model, CountTokens(prompt, caller_of(request).origin))
    assert isinstance(answer, Tokens), "the answer to this question"
    return answer.count


def refuse_long_chat(request: Request, prompt: ChatPrompt) -> None:
    refuse_long(request, "messages", prompt.messages)
    refuse_long(request, "tools", [msgspec.structs.asdict(tool) for tool in prompt.tools])
    refuse_long(request, "chat_template_kwargs", prompt.template_options)


def refuse_long(request: Request, param: str, value: Any) -> None:
    """Raise `InvalidRequest` where this field has more text in it than a question may be about."""
    most: int = request.app.state.max_text_chars
    size = characters(value)
    if size > most:
        reason = f"the text has {size} characters; a question about text may have {most} (server.max_text_chars)"
        raise InvalidRequest(reason, param=param)


def characters(value: Any) -> int:
    """Of all texts in a JSON value, names of fields too. How deep and wide it is has been bounded before."""
    count, pending = 0, [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, str):
            count += len(inner)
        elif isinstance(inner, dict):
            pending += inner
            pending += inner.values()
        elif isinstance(inner, list | tuple):
            pending += inner
    return count
