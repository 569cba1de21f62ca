"""What of a request matters to who should get it: how its prompt begins, and with whom it may share that."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from paddock.replicas.routing import chain_of
from paddock.types import ChatPrompt, GenerateRequest, InfillPrompt, MixedPrompt, TextPrompt, TokenPrompt


def chain_for(request: GenerateRequest | None) -> tuple[int, ...]:
    """Its blocks, as a router knows them; none of a question that anybody can answer."""
    return chain_of(_texts(request), apart=_apart(request)) if request is not None else ()


def _apart(request: GenerateRequest) -> str:
    """Who may share what is computed for it."""
    return f"{request.origin.tenant} {request.adapters or ''}"


def _texts(request: GenerateRequest) -> Iterator[str]:
    """What a request's prompt begins with, in the order in which a model reads it."""
    match request.prompt:
        case ChatPrompt(messages, tools):
            for tool in tools:
                yield msgspec.json.encode(tool).decode()
            for message in messages:
                yield f"{message.get('role')} {_content(message)}"
        case TextPrompt(text):
            yield text
        case TokenPrompt(tokens):
            yield str(tokens)
        case MixedPrompt(parts):
            yield str(parts)
        case InfillPrompt(prefix, suffix):
            yield prefix
            yield suffix


def _content(message: dict[str, object]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else msgspec.json.encode(message).decode()
