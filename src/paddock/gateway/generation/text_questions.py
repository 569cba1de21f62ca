"""Requests about text that generate nothing: bounded in size, and cancelled when the client disconnects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from paddock.errors import InvalidRequest
from paddock.fleet import Fleet, Model
from paddock.gateway.auth.caller import caller_of
from paddock.gateway.generation.conversation import renamed_params
from paddock.gateway.http.disconnect import until_disconnect
from paddock.types import ChatPrompt, CountTokens, TextQuestion
from paddock.wire import Text, Tokens

Reply = TypeVar("Reply", Tokens, Text)


async def ask(request: Request, fleet: Fleet, model: Model, question: TextQuestion, kind: type[Reply]) -> Reply:
    answer = await until_disconnect(request, fleet.ask(model, question))
    assert isinstance(answer, kind), "the answer to this question"
    return answer


async def count_tokens(
    request: Request, fleet: Fleet, model: Model, prompt: ChatPrompt, field_names: Mapping[str, str]
) -> int:
    """The number of tokens of the prompt. `field_names` are the dialect's own names for fields in errors."""
    with renamed_params(field_names):
        refuse_long_chat(request, prompt)
        return (await ask(request, fleet, model, CountTokens(prompt, caller_of(request).origin), Tokens)).count


def refuse_long_chat(request: Request, prompt: ChatPrompt) -> None:
    refuse_long(request, "messages", prompt.messages)
    refuse_long(request, "tools", [msgspec.structs.asdict(tool) for tool in prompt.tools])
    refuse_long(request, "chat_template_kwargs", prompt.template_options)


def refuse_long(request: Request, param: str, value: Any) -> None:
    """Raise `InvalidRequest` if this field has too much text."""
    most: int = request.app.state.max_text_chars
    size = characters(value)
    if size > most:
        reason = f"the text has {size} characters; the limit is {most} (server.max_text_chars)"
        raise InvalidRequest(reason, param=param)


def characters(value: Any) -> int:
    """The number of characters of all texts in a JSON value, including names of fields."""
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
