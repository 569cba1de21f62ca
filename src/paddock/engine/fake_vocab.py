"""The vocabulary of the fake engine: the 256 bytes and four special tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

BOS, EOS, START, END = 256, 257, 258, 259
N_VOCAB = 260

_SPECIAL = {"<s>": BOS, "</s>": EOS, "<|im_start|>": START, "<|im_end|>": END}
_NAMES = re.compile("(" + "|".join(map(re.escape, _SPECIAL)) + ")")


class FakeVocab:
    bos = "<s>"
    eos = "</s>"
    adds_bos = True
    end_tokens = frozenset({EOS, END})
    infill = None
    longest_piece = max(map(len, _SPECIAL))

    def __init__(self, chat_template: str = "") -> None:
        self.chat_template = chat_template or None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [BOS] if add_special else []
        for part in _NAMES.split(text) if parse_special else [text]:
            tokens.extend([_SPECIAL[part]] if parse_special and part in _SPECIAL else part.encode("utf-8"))
        return tokens

    def render_builtin(self, messages: Sequence[tuple[str, str]], *, starts_reply: bool) -> str | None:
        return None

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def name(self, token: int) -> bytes:
        return self.piece(token) or next(name for name, special in _SPECIAL.items() if special == token).encode()
