"""The vocabulary of a loaded model: tokenization, the bytes of tokens, and special tokens."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import ChatMessage
from paddock.types import DEFAULT_TEMPLATE, InfillTokens

_MOST_REMEMBERED = 32
_NONE = np.empty(0, np.int32)


class PieceIndex:
    """All pieces of a vocabulary in one array of bytes, to find the tokens that contain a text. A search takes a
    millisecond for 250,000 tokens.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        pieces = list(pieces)
        self._bytes = np.frombuffer(b"".join(pieces), np.uint8)
        self._ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        self._containing = lru_cache(maxsize=_MOST_REMEMBERED)(self._search)

    def tokens_with(self, texts: Iterable[str]) -> npt.NDArray[np.int32]:
        """The tokens whose piece contains one of the texts, ordered by id."""
        found = [self._containing(text.encode("utf-8", "replace")) for text in set(texts) if text]
        return np.unique(np.concatenate([_NONE, *found]))

    def _search(self, text: bytes) -> npt.NDArray[np.int32]:
        last_start = len(self._bytes) - len(text)
        at = np.flatnonzero(self._bytes[: max(last_start + 1, 0)] == text[0])
        for offset, byte in enumerate(text[1:], 1):
            at = at[self._bytes[at + offset] == byte]
        owner = np.searchsorted(self._ends, at, side="right")
        # A match that crosses the end of a piece does not count.
        whole = at + len(text) <= self._ends[owner]
        return np.unique(owner[whole]).astype(np.int32)


def render_builtin(template: str, messages: Sequence[tuple[str, str]], *, starts_reply: bool) -> str | None:
    """Render by libllama's own code for a template, which is a name or a text that it recognises."""
    encoded = [(role.encode("utf-8"), text.encode("utf-8")) for role, text in messages]
    chat = (ChatMessage * len(encoded))(*(ChatMessage(*each) for each in encoded))
    room = 256 + sum(2 * len(role) + len(text) for role, text in encoded)
    while True:
        buffer = ctypes.create_string_buffer(room)
        size = int(lib.llama_chat_apply_template(template.encode(), chat, len(encoded), starts_reply, buffer, room))
        if size <= room:
            return buffer.raw[:size].decode("utf-8", "replace") if size >= 0 else None
        room = size


class LlamaVocab:
    """Thread-safe: libllama does not change the vocabulary after loading."""

    def __init__(self, model: Any, chat_template: str = "") -> None:
        self._model = model
        self._vocab = lib.llama_model_get_vocab(model)
        # A call of libllama takes 3 µs, and a prompt may have 100,000 tokens.
        self._cached_name = lru_cache(maxsize=None)(self._name)
        source = lib.llama_model_chat_template(model, None)
        self.chat_template = chat_template or (source.decode("utf-8", "replace") if source else None)
        self.bos = self._special(lib.llama_vocab_bos(self._vocab))
        self.eos = self._special(lib.llama_vocab_eos(self._vocab))
        self.size = int(lib.llama_vocab_n_tokens(self._vocab))
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))
        self._cached_piece = lru_cache(maxsize=65536)(self._piece)
        self._indexing = threading.Lock()

    def piece(self, token: int) -> bytes:
        return self._cached_piece(token) if token >= 0 else b""

    def name(self, token: int) -> bytes:
        return self._cached_name(token) if token >= 0 else b""  # a token of an image

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """Tokens that begin or end a message, among others."""
        return frozenset(token for token in range(self.size) if lib.llama_vocab_is_control(self._vocab, token))

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        return frozenset(token for token in range(self.size) if lib.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def longest_piece(self) -> int:
        return max(len(self.text(token)) for token in range(self.size))

    def text(self, token: int) -> bytes:
        """The token's text in the model's file."""
        return lib.llama_vocab_get_text(self._vocab, token) or b""

    def kind(self) -> tuple[int, ...]:
        """The tokenizer type, and the tokens that it adds before and after a text; -1: none."""
        begins, ends = lib.llama_vocab_get_add_bos(self._vocab), lib.llama_vocab_get_add_eos(self._vocab)
        return (
            int(lib.llama_vocab_type(self._vocab)),
            int(lib.llama_vocab_bos(self._vocab)) if begins else -1,
            int(lib.llama_vocab_eos(self._vocab)) if ends else -1,
        )

    @cached_property
    def infill(self) -> InfillTokens | None:
        required = (lib.llama_vocab_fim_pre, lib.llama_vocab_fim_suf, lib.llama_vocab_fim_mid)
        prefix, suffix, middle = (int(get(self._vocab)) for get in required)
        if min(prefix, suffix, middle) < 0:
            return None
        repository, file = (int(get(self._vocab)) for get in (lib.llama_vocab_fim_rep, lib.llama_vocab_fim_sep))
        return InfillTokens(prefix, suffix, middle, None if repository < 0 else repository, None if file < 0 else file)

    def render_builtin(self, messages: Sequence[tuple[str, str]], *, starts_reply: bool) -> str | None:
        return render_builtin(self.chat_template or DEFAULT_TEMPLATE, messages, starts_reply=starts_reply)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8")
        room = len(data) + 8
        while True:
            tokens = (ctypes.c_int32 * room)()
            count = int(lib.llama_tokenize(self._vocab, data, len(data), tokens, room, add_special, parse_special))
            if count >= 0:
                return tokens[:count]
            room = -count

    def pair(self, query: str, document: str) -> list[int]:
        """A query and a document as a ranking model expects them: by its own template, or with its separators."""
        template = lib.llama_model_chat_template(self._model, b"rerank")
        if template:
            text = template.decode("utf-8", "replace")
            filled = re.sub(
                r"\{(query|document)\}", lambda place: {"query": query, "document": document}[place[1]], text
            )
            return self.tokenize(filled, add_special=False, parse_special=True)
        begin = [lib.llama_vocab_bos(self._vocab)] if self.adds_bos else []
        separator = [lib.llama_vocab_sep(self._vocab)] if lib.llama_vocab_get_add_sep(self._vocab) else []
        end: list[int] = []
        if lib.llama_vocab_get_add_eos(self._vocab):
            eos = lib.llama_vocab_eos(self._vocab)
            end = [eos if eos >= 0 else lib.llama_vocab_sep(self._vocab)]
        first, second = (self.tokenize(text, add_special=False, parse_special=False) for text in (query, document))
        return [token for token in [*begin, *first, *end, *separator, *second, *end] if token >= 0]

    def tokens_with(self, strings: tuple[str, ...]) -> npt.NDArray[np.int32]:
        """The tokens whose text contains one of the strings. The first call reads all tokens."""
        with self._indexing:
            index = self._index
        return index.tokens_with(strings)

    @cached_property
    def _index(self) -> PieceIndex:
        return PieceIndex(map(self._piece, range(self.size)))

    def _piece(self, token: int) -> bytes:
        return self._render(token, special=False)

    def _name(self, token: int) -> bytes:
        return self._render(token, special=True)

    def _special(self, token: int) -> str:
        return self.name(token).decode("utf-8", "replace") if token >= 0 else ""

    def _render(self, token: int, *, special: bool) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            size = int(lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, special))
            if size >= 0:
                return buffer.raw[:size]
            room = -size
