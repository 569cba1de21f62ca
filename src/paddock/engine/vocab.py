"""A loaded model's vocabulary: tokenising, token bytes, and the tokens with a meaning."""

from __future__ import annotations

import ctypes
import re
import threading
from functools import cached_property, lru_cache
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from paddock.engine.piece_index import PieceIndex
from paddock.types import InfillTokens


class LlamaVocab:
    """libllama only reads the vocabulary after loading, so all of this may run on any thread."""

    def __init__(self, model: Any, chat_template: str = "") -> None:
        self._model = model
        self._given_template = chat_template
        self._vocab = lib.llama_model_get_vocab(model)
        self.size = int(lib.llama_vocab_n_tokens(self._vocab))
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))
        self.piece = lru_cache(maxsize=65536)(self._piece)
        self._indexing = threading.Lock()
        self._index: PieceIndex | None = None

    @cached_property
    def chat_template(self) -> str | None:
        if self._given_template:
            return self._given_template
        source = lib.llama_model_chat_template(self._model, None)
        return source.decode("utf-8", "replace") if source else None

    @cached_property
    def bos(self) -> str:
        return self._special(lib.llama_vocab_bos(self._vocab))

    @cached_property
    def eos(self) -> str:
        return self._special(lib.llama_vocab_eos(self._vocab))

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        return frozenset(token for token in range(self.size) if lib.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def longest_piece(self) -> int:
        return max(len(self.text(token)) for token in range(self.size))

    def text(self, token: int) -> bytes:
        """As the file spells it."""
        return lib.llama_vocab_get_text(self._vocab, token) or b""

    def kind(self) -> tuple[int, ...]:
        """How it is made of texts, and which tokens it puts before and after them; -1: none."""
        begins, ends = lib.llama_vocab_get_add_bos(self._vocab), lib.llama_vocab_get_add_eos(self._vocab)
        return (
            int(lib.llama_vocab_type(self._vocab)),
            int(lib.llama_vocab_bos(self._vocab)) if begins else -1,
            int(lib.llama_vocab_eos(self._vocab)) if ends else -1,
        )

    @cached_property
    def infill(self) -> InfillTokens | None:
        ask = (lib.llama_vocab_fim_pre, lib.llama_vocab_fim_suf, lib.llama_vocab_fim_mid)
        prefix, suffix, middle = (int(get(self._vocab)) for get in ask)
        if min(prefix, suffix, middle) < 0:
            return None
        repository, file = (int(get(self._vocab)) for get in (lib.llama_vocab_fim_rep, lib.llama_vocab_fim_sep))
        return InfillTokens(prefix, suffix, middle, None if repository < 0 else repository, None if file < 0 else file)

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
        """A question and a text as a model that ranks expects them: by its own template, or with its separators."""
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
        asked, told = (self.tokenize(text, add_special=False, parse_special=False) for text in (query, document))
        return [token for token in [*begin, *asked, *end, *separator, *told, *end] if token >= 0]

    def tokens_with(self, strings: tuple[str, ...]) -> npt.NDArray[np.int32]:
        """Every token whose text contains one of these. The first question takes as long as reading all tokens."""
        with self._indexing:
            if self._index is None:
                self._index = PieceIndex(map(self._piece, range(self.size)))
        return self._index.tokens_with(strings)

    def _piece(self, token: int) -> bytes:
        return self._render(token, special=False)

    def name(self, token: int) -> bytes:
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
