"""The text side of a running request: tokens come in from the scheduler, deltas go out to the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.engine import Vocab
from paddock.scheduling import Progress
from paddock.text import TextStream
from paddock.types import FinishReason, SamplingParams, TextLogprobs, TokenLogprobs, Usage
from paddock.wire import Delta


@dataclass(slots=True)
class Clock:
    """When a request's first step began, and when its first and its newest token came; 0 until then."""

    begun: float = 0.0
    first: float = 0.0
    newest: float = 0.0

    def tick(self, now: float) -> None:
        """A token came."""
        self.first = self.first or now
        self.newest = now


class Answer:
    """One answer in the making, with its stop strings."""

    def __init__(self, stop: tuple[str, ...], vocab: Vocab, sampling: SamplingParams) -> None:
        self.sampling = sampling
        self.clock = Clock()
        self._stream = TextStream(stop)
        self._vocab = vocab
        self._logprobs: list[TextLogprobs] = []

    @property
    def stopped(self) -> bool:
        """A stop string was found: the answer is over, whatever the scheduler thinks."""
        return self._stream.stopped

    def advance(self, progress: Progress) -> Delta | None:
        """Take the next token (none for the one that ended the answer). Returns what the client may see of it."""
        request, token = progress.request, progress.token
        text = "" if token is None else self._stream.feed(self._vocab.piece(token))
        if token is not None and progress.logprobs is not None:
            self._logprobs.append(self._readable(token, progress.logprobs))
        finish: FinishReason | None = "stop" if self.stopped else progress.finish
        if finish is None and not text:
            return None
        usage = None
        if finish is not None:
            text += self._stream.finish()
            # The token that ended the answer was generated too, though nobody sees it.
            usage = Usage(request.prompt_size, request.produced + (token is None), request.cached)
        logprobs, self._logprobs = self._logprobs or None, []
        return Delta(request.id, text, request.index, finish, usage, logprobs)

    def _readable(self, token: int, logprobs: TokenLogprobs) -> TextLogprobs:
        piece = self._vocab.piece
        top = [(other, piece(other), logprob) for other, logprob in logprobs.top]
        return TextLogprobs(token, piece(token), logprobs.chosen, top)
