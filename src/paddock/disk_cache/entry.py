"""A span of tokens whose state is in a file, or is about to be written to one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from paddock.disk_cache.keys import TOKEN, StateKey, decode_tokens, encode_tokens

FILE_NAME = re.compile(r"[0-9a-f]{64}-(\d{1,10})-(\d{1,10})\.kv")
"""The name of a span's file: its address, its first token, and the token after its last."""


@dataclass(slots=True, frozen=True)
class Entry:
    """The tokens `start..end` of a prefix. Entries form a chain: the `digest` of one is the `parent` of the next."""

    namespace: str
    start: int
    end: int
    token_bytes: bytes
    """The tokens of the span itself, as `encode_tokens` writes them."""
    parent: bytes
    """The digest of the tokens before the span."""
    digest: bytes
    """The digest of all tokens up to the end of the span."""
    name: str
    """Of its file."""
    size: int = 0
    """The bytes of the file. 0: it is not written yet."""

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def tokens(self) -> list[int]:
        return decode_tokens(self.token_bytes)


def file_name(digest: bytes, start: int, end: int) -> str:
    address = hashlib.sha256(digest + start.to_bytes(8, "big")).hexdigest()
    return f"{address}-{start}-{end}.kv"


def entries_for(key: StateKey, namespace: str, tokens: Sequence[int], cuts: Sequence[int]) -> list[Entry]:
    """The spans between consecutive `cuts` of a prefix; nothing is written. The first cut may be greater than 0."""
    data = encode_tokens(tokens[: cuts[-1]])
    prefix = key.prefix(namespace)
    parent = prefix.extend(data[: cuts[0] * TOKEN])
    entries: list[Entry] = []
    for start, end in pairwise(cuts):
        assert start < end <= len(tokens), f"a span of the tokens {start} to {end}"
        span = data[start * TOKEN : end * TOKEN]
        digest = prefix.extend(span)
        entries.append(Entry(namespace, start, end, span, parent, digest, file_name(digest, start, end)))
        parent = digest
    return entries
