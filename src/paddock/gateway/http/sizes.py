"""The size limits of request bodies, as documented in docs/guides/http-api.md.

Bodies are measured before validation: an error message for each of a million values would take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Final

import msgspec

from paddock.errors import InvalidJSON, InvalidRequest

DEEPEST: Final = 200
"""Nested lists and objects in a body. The parser has the same limit."""
MOST_VALUES: Final = 100_000
"""Values in a body, without lists of tokens."""
MOST_TOKENS: Final = 2**20
"""Tokens in all token lists of a body."""
MOST_MISTAKES: Final = 1000
LARGEST_INTEGER: Final = 2**31 - 1
"""The wire cannot carry larger ones."""

MOST_MESSAGES: Final = 8192
MOST_PARTS: Final = 1024
"""Of one message."""
MOST_CALLS: Final = 256
"""In one message."""
MOST_TOOLS: Final = 256
MOST_PROMPTS: Final = 256
MOST_INPUTS: Final = 2048
"""For embeddings. OpenAI has the same limit."""
MOST_DOCUMENTS: Final = 2048
MOST_ANSWERS: Final = 128
MOST_ANSWERS_IN_ALL: Final = 1024
"""For all prompts of a request."""
MOST_STOPS: Final = 32
LONGEST_STOP: Final = 1024
LONGEST_BUDGET_MESSAGE: Final = 4096
MOST_BIASES: Final = 1024
LONGEST_BIASED: Final = 256
"""Characters of a text in `logit_bias`."""
MOST_BREAKERS: Final = 64
LONGEST_BREAKER: Final = 256
MOST_SAMPLERS: Final = 32
MOST_ADAPTERS: Final = 256
MOST_FILES: Final = 256
MOST_RESPONSE_FIELDS: Final = 256
LARGEST_CONSTRAINT: Final = 2**16
"""Characters of a schema, grammar or regular expression."""

_SEPARATORS: Final = (b",", b"[", b"{")
"""Every value follows one of them."""
_PIECE = 64 * 1024
_SMALL = 4096
"""Bytes. A smaller body cannot exceed any limit."""


def refuse_bulk(data: bytes, token_lists: Set[str]) -> None:
    """Raise `InvalidRequest` for a body with too many values. The fields in `token_lists` may have more."""
    if len(data) <= _SMALL:
        return
    # Before decoding, which is slow for millions of values.
    _refuse_as_written(data, MOST_VALUES + MOST_TOKENS * len(token_lists), (b",",))
    try:
        content = msgspec.json.decode(data)
    except RecursionError:
        raise too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return  # the parser will report it
    if not isinstance(content, dict):
        _counted("", content, MOST_VALUES)
        return
    count = tokens = 0
    for name, value in content.items():
        if name in token_lists:
            tokens += _counted(name, value, MOST_TOKENS)
        else:
            count = _counted(name, value, MOST_VALUES, count)
    _refuse_as_written(data, MOST_VALUES + tokens, _SEPARATORS)


def _refuse_as_written(data: bytes, most: int, separators: Sequence[bytes]) -> None:
    """Count the values in the JSON text: the decoder keeps one value of a repeated name, but validation reads all."""
    # Half of the separators may belong to empty lists.
    if sum(map(data.count, separators)) <= 2 * most + 1:
        return  # even if no separator is inside a string
    if _unquoted(data, separators, 2 * most + 1) > 2 * most + 1:
        raise InvalidRequest(f"the body has more than {most} values, repeated names included")


def _unquoted(data: bytes, separators: Sequence[bytes], enough: int) -> int:
    """The number of separators outside strings. Stops soon after `enough`."""
    count = begin = 0
    quoted = False
    while begin < len(data) and count <= enough:
        end = begin + _PIECE
        while data[end - 1 : end] == b"\\":  # an escaped character stays in one piece
            end += 1
        # Without escaped quotes every second part is outside strings.
        parts = data[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[quoted::2])
        count += sum(map(outside.count, separators))
        quoted ^= len(parts) % 2 == 0
        begin = end
    return count


def too_deep() -> InvalidJSON:
    return InvalidJSON(f"the body is nested more than {DEEPEST} levels deep")


def is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        entries = [entry for inner in level for entry in (inner.values() if isinstance(inner, dict) else inner)]
        level = [entry for entry in entries if type(entry) in (list, dict)]
        if not level:
            return False
    return True


def _counted(name: str, value: Any, most: int, before: int = 0) -> int:
    """The number of values, including those of this field."""
    count = before + 1
    pending = [value]
    while pending:
        inner = pending.pop()
        entries = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
        count += len(entries)
        if count > most:
            prefix = f"{name}: " if name else ""
            raise InvalidRequest(f"{prefix}the body has more than {most} values", param=name or None)
        pending += [entry for entry in entries if type(entry) in (list, dict)]
    return count
