"""The text side of a running request: tokens come in from the scheduler, deltas go out to the gateway."""

from __future__ import annotations

import hashlib
import string

import msgspec

from paddock.engine import Vocab
from paddock.scheduling import Progress, Request
from paddock.text import IndentLimit, Parsed, ReplyParser, StopStrings, TextStream
from paddock.types import (
    FinishReason,
    GenerateRequest,
    PromptProgress,
    SamplingParams,
    TextLogprobs,
    Timings,
    TokenLogprobs,
    Usage,
)
from paddock.wire import Delta
from paddock.worker.prompts import Reply

_ID_LETTERS = string.ascii_letters + string.digits


class Clock:
    """When a request was accepted, when its first step with a part of its prompt began, and when its tokens came."""

    def __init__(self, accepted: float = 0.0) -> None:
        self._accepted = accepted
        self._begun: float | None = None
        self._first: float | None = None
        self._newest = 0.0

    def begin(self, now: float) -> float | None:
        """A step that computes a part of its prompt begins. The first one counts, and returns how long it waited."""
        if self._begun is not None:
            return None
        self._begun = now
        return max(now - self._accepted, 0.0)

    def tick(self, now: float) -> None:
        """A token came."""
        if self._first is None:
            self._first = now
        self._newest = now

    @property
    def newest(self) -> float | None:
        """When the newest token came."""
        return None if self._first is None else self._newest

    @property
    def ticking(self) -> bool:
        """The prompt has been read."""
        return self._first is not None

    @property
    def generating(self) -> float:
        """Seconds since the first token."""
        return 0.0 if self._first is None else self._newest - self._first

    def timings(self, now: float) -> Timings:
        """Of a request that is still in its prompt: as far as it is."""
        if self._begun is None:
            return Timings(generation=self.generating)
        return Timings(prompt=(now if self._first is None else self._first) - self._begun, generation=self.generating)


class Answer:
    """One answer in the making, with its stop strings and its times. `now` is what its owner's clock says."""

    def __init__(
        self,
        request: GenerateRequest,
        vocab: Vocab,
        reply: Reply | None = None,
        *,
        stops: StopStrings | None = None,
        call_ids: str = "",
        accepted: float = 0.0,
    ) -> None:
        """`stops` are the request's stop strings, made ready once for all its answers; `call_ids` is what the ids of
        tool calls are made of; `accepted` is when the request was.
        """
        self._request = request
        self._shown = reply.shown if reply is not None else frozenset()
        self._parser: ReplyParser | None = None
        if reply is not None:
            self._parser = ReplyParser(
                reply.format,
                reply.tools,
                call_id=lambda index: _call_id(f"{call_ids} {index}"),
                lead=reply.lead,
                split_reasoning=reply.split_reasoning,
                bare_calls=reply.bare_calls,
            )
        self._reasoning_tokens = 0
        self._thinking_budget = reply.thinking_budget if reply is not None else None
        self._thought_end = reply.thought_end if reply is not None else ()
        self.clock = Clock(accepted)
        self._stream = TextStream(request.stop if stops is None else stops)
        self._indent = IndentLimit(request.min_indent) if request.min_indent else None
        self._vocab = vocab
        self._logprobs: list[TextLogprobs] = []
        self._prompt_logprobs: list[TextLogprobs] = []
        self._tokens: list[int] = []
        self._has_line = False
        self._late = False
        self._failed = False

    @property
    def sampling(self) -> SamplingParams:
        return self._request.sampling

    @property
    def max_tokens(self) -> int | None:
        return self._request.max_tokens

    @property
    def stopped(self) -> bool:
        """A stop string or a limit was met: the answer ends here, whatever the scheduler thinks."""
        return self._failed or self._stream.stopped or self._late or self._outdented

    def fail(self) -> None:
        """Nothing more is to come of it."""
        self._failed = True

    @property
    def _outdented(self) -> bool:
        return self._indent is not None and self._indent.ended

    def dictation(self) -> tuple[int, ...]:
        """What the answer must go on with: it has thought for as long as it may. Said once."""
        budget = self._thinking_budget
        if budget is None or self._parser is None or not self._parser.in_reasoning or self._reasoning_tokens < budget:
            return ()
        self._thinking_budget = None
        return self._thought_end

    def timings(self, request: Request, now: float) -> Timings:
        return msgspec.structs.replace(self.clock.timings(now), drafted=request.drafted, accepted=request.accepted)

    def read(self, request: Request, now: float) -> Delta | None:
        """Say how much of the prompt has been read, where that is asked for."""
        if not self._request.return_progress or self.clock.ticking:
            return None
        read = min(request.computed, request.prompt_size)
        progress = PromptProgress(request.prompt_size, request.cached, read, self.clock.timings(now).prompt)
        return Delta(request.id, "", request.index, slot=request.slot, progress=progress)

    def advance(self, progress: Progress, now: float) -> Delta | None:
        """Take the next token (none for the one that ended the answer). Returns what the client may see of it."""
        if progress.prompt:
            self._read_prompt(progress)
        token = progress.token
        if token is None and progress.finish is None:
            return None
        self.clock.tick(now)
        text = "" if token is None else self._outdent(self._stream.feed(self._piece(token)))
        if token is not None and progress.logprobs is not None:
            self._logprobs.append(self._readable(token, progress.logprobs))
        if token is not None and self._request.return_tokens:
            self._tokens.append(token)
        if self._request.max_seconds:
            self._has_line = self._has_line or "\n" in text
            self._late = self._has_line and self.clock.generating > self._request.max_seconds
        finish = self._finish(progress)
        if finish is not None:
            text += self._outdent(self._stream.finish())
        parsed = Parsed(text) if self._parser is None else self._parse(self._parser, text, finish)
        if finish is None and not parsed and not self._prompt_logprobs:
            return None
        return self._delta(progress, parsed, finish, now)

    def _piece(self, token: int) -> bytes:
        return self._vocab.name(token) if token in self._shown else self._vocab.piece(token)

    def _parse(self, parser: ReplyParser, text: str, finish: FinishReason | None) -> Parsed:
        self._reasoning_tokens += parser.in_reasoning
        parsed = parser.feed(text)
        if finish is not None:
            rest = parser.finish()
            parsed.content += rest.content
            parsed.reasoning += rest.reasoning
            parsed.calls += rest.calls
        return parsed

    def _finish(self, progress: Progress) -> FinishReason | None:
        if self._stream.stopped:
            return "stop"
        return progress.finish or ("length" if self._late or self._outdented else None)

    def _outdent(self, text: str) -> str:
        return text if self._indent is None else self._indent.feed(text)

    def _delta(self, progress: Progress, parsed: Parsed, finish: FinishReason | None, now: float) -> Delta:
        request = progress.request
        usage = timings = None
        if finish is not None or self._request.timings_per_token:
            # The token that ended the answer was generated too, though nobody sees it.
            unseen = progress.token is None and finish == "stop"
            usage = Usage(request.prompt_size, progress.produced + unseen, request.cached, self._reasoning_tokens)
            timings = self.timings(request, now)
        if self._outdented:
            finish = "length"  # whatever else ended it: something of it is not shown
        logprobs, self._logprobs = self._logprobs or None, []
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs or None, []
        tokens, self._tokens = self._tokens or None, []
        return Delta(
            request.id,
            parsed.content,
            request.index,
            finish,
            usage,
            logprobs,
            prompt_logprobs,
            tokens,
            timings,
            request.slot,
            self._stream.stop_string,
            reasoning=parsed.reasoning,
            calls=parsed.calls or None,
            malformed=self._parser is not None and self._parser.malformed,
        )

    def _read_prompt(self, progress: Progress) -> None:
        first = 1 + len(self._prompt_logprobs)
        tokens = progress.request.tokens[first : first + len(progress.prompt)]
        self._prompt_logprobs += map(self._readable, tokens, progress.prompt)

    def _readable(self, token: int, logprobs: TokenLogprobs) -> TextLogprobs:
        piece = self._vocab.piece
        top = [(other, piece(other), logprob) for other, logprob in logprobs.top]
        return TextLogprobs(token, piece(token), logprobs.chosen, top)


def _call_id(source: str) -> str:
    """Nine letters and digits, which is what Mistral's templates insist on, and nobody else minds."""
    number = int.from_bytes(hashlib.sha256(source.encode()).digest())
    return "".join(_ID_LETTERS[number // 62**place % 62] for place in range(9))
