"""The text side of a running request: tokens come in from the engine, deltas go out to the gateway."""

from __future__ import annotations

from paddock.engine import Vocab
from paddock.text import TextStream
from paddock.types import FinishReason, Usage
from paddock.wire import Delta


class Answer:
    """One answer in the making. Stop strings are found here; the engine is told afterwards and may be a token ahead."""

    def __init__(self, request_id: int, *, prompt_tokens: int, stop: tuple[str, ...], vocab: Vocab) -> None:
        self._id = request_id
        self._prompt_tokens = prompt_tokens
        self._stream = TextStream(stop)
        self._vocab = vocab
        self._produced = 0

    def advance(self, token: int | None, finish: FinishReason | None) -> Delta | None:
        """Take the next token (none for the one that ended the answer). Returns what the client may see of it."""
        self._produced += 1
        text = "" if token is None else self._stream.feed(self._vocab.piece(token))
        if self._stream.stopped:
            finish = "stop"
        if finish is None:
            return Delta(self._id, text) if text else None
        text += self._stream.finish()
        return Delta(self._id, text, finish, Usage(self._prompt_tokens, self._produced))
