"""The key by which lines are ordered: the words of the prompt in the order in which templates write them."""

from __future__ import annotations

import msgspec

from paddock.batches.ordering import LONGEST_KEY
from paddock.types import Adapters, ChatPrompt, InfillPrompt, MediaPrompt, MixedPrompt, Prompt, TextPrompt, TokenPrompt

_FIRST = ("system", "developer")
"""Templates write these messages first, then the tools."""


def prefix_key(prompt: Prompt, adapters: Adapters = ()) -> bytes:
    """Prompts with a common beginning have keys with one. Prompts with other adapters share nothing."""
    head = msgspec.json.encode(adapters) + b"\n" if adapters else b""
    return (head + _words(prompt))[:LONGEST_KEY]


def _words(prompt: Prompt) -> bytes:
    match prompt:
        case ChatPrompt(messages=messages, tools=tools):
            count = next((at for at, one in enumerate(messages) if one.get("role") not in _FIRST), len(messages))
            return _joined(messages[:count]) + b"\n" + msgspec.json.encode(tools) + b"\n" + _joined(messages[count:])
        case TextPrompt(text):
            return text.encode("utf-8", "surrogatepass")
        case TokenPrompt(tokens):
            return b"".join(token.to_bytes(4, "big") for token in tokens[: LONGEST_KEY // 4])
        case MixedPrompt(parts):
            return msgspec.json.encode(parts)
        case MediaPrompt(texts):
            return texts[0].encode("utf-8", "surrogatepass")
        case InfillPrompt():
            return (prompt.suffix + prompt.prefix if prompt.suffix_first else prompt.prefix).encode(
                "utf-8", "surrogatepass"
            )


def _joined(messages: list[dict[str, object]]) -> bytes:
    pieces: list[bytes] = []
    size = 0
    for message in messages:
        pieces.append(msgspec.json.encode(message))
        size += len(pieces[-1])
        if size > LONGEST_KEY:
            break
    return b"\n".join(pieces)
