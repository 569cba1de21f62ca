"""The parts of a request that matter for routing: the beginning of its prompt, and its tenant and adapters."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from paddock.replicas.routing import chain_of
from paddock.types import ChatPrompt, GenerateRequest, InfillPrompt, MediaPrompt, MixedPrompt, TextPrompt, TokenPrompt


def chain_for(request: GenerateRequest | None) -> tuple[int, ...]:
    """Its prompt as router blocks; empty without a request, which any replica can serve."""
    return chain_of(texts_of(request), apart=_apart(request)) if request is not None else ()


def _apart(request: GenerateRequest) -> str:
    """What separates its cache entries from others."""
    return f"{request.origin.tenant} {request.adapters or ''}"


def texts_of(request: GenerateRequest) -> Iterator[str]:
    """The texts of the prompt in the order in which the model reads them."""
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
        case MediaPrompt(texts, media):
            yield texts[0]
            for file, text in zip(media, texts[1:], strict=True):
                yield file.data
                yield text
        case InfillPrompt(prefix, suffix):
            yield prefix
            yield suffix


def _content(message: dict[str, object]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else msgspec.json.encode(message).decode()
