"""What an answer consists of, for its receipt."""

from __future__ import annotations

import hashlib

from paddock.types import ReceiptFacts


class AnswerTrace:
    """All tokens of one answer, and the hash of its text."""

    def __init__(self, prompt_sha256: str, seed: int) -> None:
        self._prompt_sha256 = prompt_sha256
        self._seed = seed
        self._tokens: list[int] = []
        self._text = hashlib.sha256()

    def add_token(self, token: int) -> None:
        self._tokens.append(token)

    def add_text(self, text: str) -> None:
        """Text as it is shown, before reasoning and tool calls are separated from it."""
        self._text.update(text.encode())

    def facts(self) -> ReceiptFacts:
        return ReceiptFacts(self._prompt_sha256, self._seed, self._tokens, self._text.hexdigest())
