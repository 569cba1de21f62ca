"""Builds llguidance's tables for a vocabulary without Python's lock.

They take seconds for 250,000 tokens. `LLTokenizer` builds them with the lock held, so all other threads of the worker
would stand still, and with them the streams of other requests. llguidance's C API does not hold it. The Python package
exports the C API too, but has no function that makes an `LLTokenizer` of a C tokenizer. Both are one reference to the
same tables, so here an `LLTokenizer` exchanges its reference for that of a C tokenizer. Where this is not certain,
`LLTokenizer` builds the tables.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper, _lib

_KNOWN_VERSIONS = ("1.9.1",)
"""Releases of llguidance whose source shows that both kinds of tokenizers are one reference."""
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_Tokenize = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t
)
_callbacks: list[Any] = []
"""They are called for as long as the process lives."""


class Vocabulary(Protocol):
    """A tokenizer as llguidance expects it."""

    eos_token_id: int
    tokens: list[bytes]
    """Those of special tokens begin with the byte 255."""

    def __call__(self, text: str) -> list[int]: ...


class _TokenizerInit(ctypes.Structure):
    """`LlgTokenizerInitV2` of llguidance.h."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.c_void_p),
        ("token_bytes", ctypes.c_char_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", _Tokenize),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
        ("tok_eos_extra", ctypes.c_void_p),
        ("tok_eos_extra_count", ctypes.c_uint32),
    )


def build_tokenizer(vocabulary: Vocabulary, end_tokens: Sequence[int]) -> LLTokenizer:
    """May take seconds. Other threads run meanwhile, if `is_lock_free()`."""
    if is_lock_free():
        return _build(vocabulary, end_tokens)
    return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=list(end_tokens) or None)


@cache
def is_lock_free() -> bool:
    """Whether the tables are built without Python's lock."""
    if version("llguidance") not in _KNOWN_VERSIONS:
        return False
    if LLTokenizer.__basicsize__ != object.__basicsize__ + _POINTER:
        return False  # an `LLTokenizer` is more than one reference
    try:
        _library()
    except (OSError, AttributeError):
        return False
    return True


@cache
def _library() -> Any:
    """The C API in the module that Python has loaded. Raises `OSError` or `AttributeError` if it has none."""
    library = ctypes.CDLL(str(_lib.__file__), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    library.llg_new_tokenizer_v2.restype = ctypes.c_void_p
    library.llg_new_tokenizer_v2.argtypes = [ctypes.POINTER(_TokenizerInit), ctypes.c_char_p, ctypes.c_size_t]
    library.llg_free_tokenizer.restype = None
    library.llg_free_tokenizer.argtypes = [ctypes.c_void_p]
    return library


def _build(vocabulary: Vocabulary, end_tokens: Sequence[int]) -> LLTokenizer:
    sizes = np.fromiter(map(len, vocabulary.tokens), np.uint32, len(vocabulary.tokens))
    first, *others = list(end_tokens) or [vocabulary.eos_token_id]
    extra = np.array(others, np.uint32)
    init = _TokenizerInit(
        struct_size=ctypes.sizeof(_TokenizerInit),
        vocab_size=len(sizes),
        tok_eos=first,
        token_lens=sizes.ctypes.data,
        token_bytes=b"".join(vocabulary.tokens),
        tokenize_assumes_string=True,
        tokenize_fn=_callback(vocabulary),
        tok_eos_extra=extra.ctypes.data if others else None,
        tok_eos_extra_count=len(others),
    )
    message = ctypes.create_string_buffer(256)
    tokenizer = LLTokenizer("byte")  # a small one
    built = _library().llg_new_tokenizer_v2(init, message, len(message))
    if not built:
        raise ValueError(message.value.decode(errors="replace"))
    mine = ctypes.c_void_p.from_address(id(tokenizer) + object.__basicsize__)
    its = ctypes.c_void_p.from_address(built)
    mine.value, its.value = its.value, mine.value
    _library().llg_free_tokenizer(built)
    return tokenizer


def _callback(vocabulary: Vocabulary) -> Any:
    def tokenize(_: Any, data: int, size: int, output: Any, room: int) -> int:
        try:
            tokens = vocabulary(ctypes.string_at(data, size).decode("utf-8"))
        except Exception:  # llguidance continues without these tokens
            return 0
        for place, token in enumerate(tokens[:room]):
            output[place] = token
        return len(tokens)

    callback = _Tokenize(tokenize)
    _callbacks.append(callback)
    return callback
