"""The text side of a running request: tokens come in from the engine, deltas go out to the gateway."""

from __future__ import annotations

from paddock.engine import Vocab
from paddock.scheduling import Progress
from paddock.text import TextStream
from paddock.types import TextLogprobs, TokenLogprobs, Usage
from paddock.wire import Delta


class Answer:
    """One answer in the making. Stop strings are found here; the engine is told afterwards and may be a token ahead."""

    def __init__(self, stop: tuple[str, ...], vocab: Vocab) -> None:
        self._stream = TextStream(stop)
        self._vocab = vocab
        self._produced = 0
        self._logprobs: list[TextLogprobs] = []

    def advance(self, progress: Progress) -> Delta | None:
        """Take the next token (none for the one that ended the answer). Returns what the client may see of it."""
        request, token, finish = progress.request, progress.token, progress.finish
        self._produced += 1
        text = "" if token is None else self._stream.feed(self._vocab.piece(token))
        if token is not None and progress.logprobs is not None:
            self._logprobs.append(self._readable(token, progress.logprobs))
        if self._stream.stopped:
            finish = "stop"
        if finish is None and not text:
            return None
        usage = None
        if finish is not None:
            text += self._stream.finish()
            usage = Usage(request.prompt_size, self._produced, request.cached)
        logprobs, self._logprobs = self._logprobs or None, []
        return Delta(request.id, text, request.index, finish, usage, logprobs)

    def _readable(self, token: int, logprobs: TokenLogprobs) -> TextLogprobs:
        piece = self._vocab.piece
        top = [(other, piece(other), logprob) for other, logprob in logprobs.top]
        return TextLogprobs(token, piece(token), logprobs.chosen, top)
