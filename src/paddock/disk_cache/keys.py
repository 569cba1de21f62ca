"""The addresses of spans: digests of a model's state, of a namespace in it, and of a prefix of tokens."""

from __future__ import annotations

import ast
import hashlib
import sys
from array import array
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

import msgspec

from paddock.types import StateOrigin

FORMAT: Final = 1
"""The version of the files. It is part of every address, so that versions never read each other's files."""

TOKEN: Final = 4
"""The bytes of one token."""

_DIGITS = 32
"""Of a digest in the name of a folder."""


class StateKey:
    """What the bytes of a span depend on besides its namespace and tokens."""

    def __init__(self, origin: StateOrigin, payload: str = "rows") -> None:
        """`payload` names how a state is written. Another way to write it has other files."""
        self.origin = origin
        self.payload = payload

    @cached_property
    def digest(self) -> bytes:
        # `arithmetic` and `adapters` matter to some namespaces only: `scope` adds them.
        shared = msgspec.structs.asdict(self.origin)
        del shared["arithmetic"], shared["adapters"]
        return _digest(FORMAT, self.payload, sorted(shared.items()))

    @property
    def folder(self) -> str:
        return self.digest.hex()[:_DIGITS]

    def scope(self, namespace: str) -> bytes:
        """The digest of everything but the tokens."""
        deterministic, numbers = _facts_of(namespace)
        adapters = self.origin.adapters
        return _digest(
            self.digest,
            encode_namespace(namespace),
            self.origin.arithmetic if deterministic else None,
            adapters if numbers is None else [(number, adapters[number : number + 1]) for number in numbers],
        )

    def namespace_folder(self, namespace: str) -> str:
        return self.scope(namespace).hex()[:_DIGITS]

    def prefix(self, namespace: str) -> PrefixDigest:
        return PrefixDigest(self.scope(namespace))


class PrefixDigest:
    """The digest of the first tokens in a namespace. It does not depend on how the tokens were cut into spans."""

    def __init__(self, scope: bytes) -> None:
        self._hash = hashlib.sha256(scope)

    def extend(self, tokens: bytes) -> bytes:
        """The digest with these tokens added."""
        self._hash.update(tokens)
        return self._hash.copy().digest()


def encode_tokens(tokens: Iterable[int]) -> bytes:
    """Big-endian, so that bytes compare as the tokens do. Tokens of images are negative, and come last."""
    encoded = array("i", tokens)
    assert encoded.itemsize == TOKEN, "an int has four bytes on every platform that llama.cpp supports"
    if sys.byteorder == "little":
        encoded.byteswap()
    return encoded.tobytes()


def decode_tokens(data: bytes) -> list[int]:
    tokens = array("i", data)
    if sys.byteorder == "little":
        tokens.byteswap()
    return tokens.tolist()


def encode_namespace(namespace: str) -> bytes:
    return namespace.encode("utf-8", "surrogatepass")


def tenant_of(namespace: str) -> str:
    """A tenant has several namespaces: adapters and deterministic requests have their own."""
    return namespace.partition("\0")[0]


def _facts_of(namespace: str) -> tuple[bool, list[int] | None]:
    """Whether a namespace is deterministic, and the numbers of its adapters. None: any adapter may matter.

    `scheduling.slots.namespace_of` writes these after the tenant. If they cannot be read, everything matters.
    """
    _, separator, facts = namespace.partition("\0")
    if not separator:
        return False, []
    deterministic, _, adapters = facts.partition("\0")
    try:
        return deterministic != "False", [number for number, _scale in ast.literal_eval(adapters)]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return True, None


def _digest(*parts: Any) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()
