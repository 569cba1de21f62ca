"""The text side of a running request: tokens come in from the scheduler, deltas go out to the gateway."""

from __future__ import annotations

import hashlib
import string
from functools import partial

import msgspec

from paddock.engine import Vocab
from paddock.scheduling import Progress, Request
from paddock.text import IndentLimit, Parsed, ReplyParser, StopStrings, TextStream
from paddock.types import (
    FinishReason,
    GenerateRequest,
    PromptProgress,
    TextLogprobs,
    Timings,
    TokenLogprobs,
    Usage,
)
from paddock.wire.messages import Delta
from paddock.worker.answer_trace import AnswerTrace
from paddock.worker.cache_reports import Explanation
from paddock.worker.clock import Clock
from paddock.worker.prompts import Reply

_ID_LETTERS = string.ascii_letters + string.digits


class Answer:
    """One running answer, with its stop strings and times. `now` is the time of the caller's clock."""

    def __init__(
        self,
        request: GenerateRequest,
        vocab: Vocab,
        reply: Reply | None = None,
        *,
        stops: StopStrings | None = None,
        call_ids: str = "",
        accepted: float = 0.0,
        explanation: Explanation | None = None,
        trace: AnswerTrace | None = None,
    ) -> None:
        """`stops` are the request's stop strings, which all its answers share; `call_ids` is the seed for the ids of
        tool calls; `accepted` is when the request was accepted; `explanation` is for its cache report, and `trace`
        for its receipt.
        """
        self.request = request
        self.explanation = explanation
        self._trace = trace
        self._shown = reply.shown if reply is not None else frozenset()
        self._parser: ReplyParser | None = None
        self._reasoning: ReplyParser | None = None
        """Knows whether the answer is in reasoning, also if the reasoning is not separated."""
        if reply is not None:
            parser = partial(ReplyParser, reply.format, call_id=lambda index: _call_id(f"{call_ids} {index}"))
            if reply.is_parsed:
                self._parser = parser(
                    reply.tools,
                    reply_prefix=reply.reply_prefix if reply.split_reasoning else "",
                    split_reasoning=reply.split_reasoning,
                    bare_calls=reply.bare_calls,
                )
            if reply.is_parsed and reply.split_reasoning:
                self._reasoning = self._parser
            elif reply.thinking_budget is not None:
                self._reasoning = parser((), reply_prefix=reply.reply_prefix)
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
        self._is_overdue = False
        self._has_failed = False

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string, a limit or an error has ended the answer. The scheduler does not know of them."""
        return self._has_failed or self._stream.stopped or self._is_overdue or self._is_outdented

    def fail(self) -> None:
        self._has_failed = True

    @property
    def _is_outdented(self) -> bool:
        return self._indent is not None and self._indent.ended

    def forced_tokens(self) -> tuple[int, ...]:
        """The tokens that must come next because the thinking budget is used up. Returned once."""
        budget = self._thinking_budget
        reasoning = self._reasoning
        if budget is None or reasoning is None or not reasoning.in_reasoning or self._reasoning_tokens < budget:
            return ()
        self._thinking_budget = None
        return self._thought_end

    @property
    def step_limit(self) -> int | None:
        """The most tokens of the next step: with more, `forced_tokens` would come too late. None: any number."""
        budget = self._thinking_budget
        return None if budget is None else max(budget - self._reasoning_tokens, 1)

    def timings(self, request: Request, now: float) -> Timings:
        return msgspec.structs.replace(self.clock.timings(now), drafted=request.drafted, accepted=request.accepted)

    def prompt_progress(self, request: Request, now: float) -> Delta | None:
        """How much of the prompt is computed. None unless the request asks for it and is in prefill."""
        if not self.request.return_progress or self.clock.newest is not None:
            return None
        done = min(request.computed, request.given_size)
        progress = PromptProgress(request.given_size, request.cached, done, self.clock.timings(now).prompt)
        return Delta(request.id, "", request.index, slot=request.slot, progress=progress)

    def advance(self, progress: Progress, now: float) -> Delta | None:
        """Add the next token (None for an end token). Returns a delta if there is something to send."""
        if progress.prompt:
            self._add_prompt_logprobs(progress)
        token = progress.token
        if token is None and progress.finish is None:
            return None
        self.clock.tick(now)
        shown = progress.end if token is None and self.request.special_tokens else token
        text = "" if shown is None else self._outdent(self._stream.feed(self._piece(shown)))
        if token is not None and progress.logprobs is not None:
            self._logprobs.append(self._text_logprobs(token, progress.logprobs))
        if token is not None and self.request.return_tokens:
            self._tokens.append(token)
        if self.request.max_seconds:
            self._has_line = self._has_line or "\n" in text
            self._is_overdue = self._has_line and self.clock.generating > self.request.max_seconds
        finish = self._finish(progress)
        if finish is not None:
            text += self._outdent(self._stream.finish())
        if self._trace is not None:
            if token is not None:
                self._trace.add_token(token)
            self._trace.add_text(text)
        if self._reasoning is not None:
            self._reasoning_tokens += self._reasoning.in_reasoning
            if self._reasoning is not self._parser:
                self._reasoning.feed(text)
        parsed = Parsed(text) if self._parser is None else self._parse(self._parser, text, finish)
        if finish is None and not parsed and not self._prompt_logprobs:
            return None
        return self._delta(progress, parsed, finish, now)

    def _piece(self, token: int) -> bytes:
        is_shown = self.request.special_tokens or token in self._shown
        return self._vocab.name(token) if is_shown else self._vocab.piece(token)

    def _parse(self, parser: ReplyParser, text: str, finish: FinishReason | None) -> Parsed:
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
        return progress.finish or ("length" if self._is_overdue or self._is_outdented else None)

    def _outdent(self, text: str) -> str:
        return text if self._indent is None else self._indent.feed(text)

    def _delta(self, progress: Progress, parsed: Parsed, finish: FinishReason | None, now: float) -> Delta:
        request = progress.request
        usage = timings = None
        if finish is not None or self.request.timings_per_token:
            # An end token was generated too, although it has no text.
            hidden = progress.token is None and finish == "stop"
            usage = Usage(
                request.given_size,
                progress.produced + hidden,
                request.cached,
                self._reasoning_tokens,
                held_tokens=progress.computed,
                truncated=progress.truncated,
                receipt=self._trace.facts() if self._trace is not None and finish is not None else None,
            )
            timings = self.timings(request, now)
            if finish is not None:
                timings = msgspec.structs.replace(timings, parts=self.clock.parts())
        if self._is_outdented:
            finish = "length"  # even if it ended by itself, because a part of it is not shown
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

    def _add_prompt_logprobs(self, progress: Progress) -> None:
        first = 1 + len(self._prompt_logprobs)
        tokens = progress.request.tokens[first : first + len(progress.prompt)]
        self._prompt_logprobs += map(self._text_logprobs, tokens, progress.prompt)

    def _text_logprobs(self, token: int, logprobs: TokenLogprobs) -> TextLogprobs:
        piece = self._vocab.name if self.request.special_tokens else self._vocab.piece
        top = [(other, piece(other), logprob) for other, logprob in logprobs.top]
        return TextLogprobs(token, piece(token), logprobs.chosen, top)


def _call_id(source: str) -> str:
    """Nine letters and digits: Mistral's templates require this form, and no other template refuses it."""
    number = int.from_bytes(hashlib.sha256(source.encode()).digest())
    return "".join(_ID_LETTERS[number // 62**place % 62] for place in range(9))
