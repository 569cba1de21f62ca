"""Requests about text that generate nothing: bounded in size, and cancelled when the client disconnects."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from paddock.errors import InvalidRequest
from paddock.gateway.generation.defaults import with_defaults
from paddock.gateway.generation.endpoint import Call
from paddock.gateway.generation.media_sources import MediaSources
from paddock.gateway.generation.normalizing import names_for, normalized
from paddock.gateway.http.disconnect import until_disconnect
from paddock.gateway.http.scope import HELD
from paddock.types import ChatPrompt, CountTokens, TextQuestion
from paddock.wire.messages import Text, Tokens

Reply = TypeVar("Reply", Tokens, Text)


async def ask(call: Call[Any], question: TextQuestion, kind: type[Reply]) -> Reply:
    answer = await until_disconnect(call.request, call.fleet.ask(call.model, question))
    assert isinstance(answer, kind), "the answer to this question"
    return answer


class InputTokens(msgspec.Struct, kw_only=True):
    """The answer of the routes that count tokens, as OpenAI and llama-server give it."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


async def prompt_of(call: Call[Any]) -> ChatPrompt:
    """The prompt of a conversation, with the model's defaults. Refuses one that is too long."""
    model = call.model
    body = await with_defaults(call.body, model, is_loaded=call.fleet.info(model) is not None)
    prompt: ChatPrompt = body.prompt()
    refuse_long(call, "messages", prompt.messages)
    refuse_long(call, "tools", [msgspec.structs.asdict(tool) for tool in prompt.tools])
    refuse_long(call, "chat_template_kwargs", prompt.template_options)
    return prompt


async def _with_files(call: Call[Any], prompt: ChatPrompt) -> ChatPrompt:
    sources: MediaSources = call.request.app.state.media_sources
    found = await until_disconnect(call.request, sources.fetch(prompt, call.request.scope.get(HELD)))
    assert isinstance(found, ChatPrompt), "as before"
    return found


async def count_tokens(call: Call[Any]) -> int:
    """The number of tokens of the prompt, normalized as in a request."""
    prompt, _ = normalized(await prompt_of(call), names_for(call.body, call.model))
    assert isinstance(prompt, ChatPrompt), "as before"
    return (await ask(call, CountTokens(await _with_files(call, prompt), call.origin), Tokens)).count


def refuse_long(call: Call[Any], param: str, value: Any) -> None:
    """Raise `InvalidRequest` if this field has too much text."""
    most: int = call.request.app.state.max_text_chars
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
