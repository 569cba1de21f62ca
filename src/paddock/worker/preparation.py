"""Preparing requests for the engine: prompts are tokenized and constraints compiled, away from the I/O thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paddock.engine import Engine
from paddock.errors import InvalidRequest, PaddockError
from paddock.text import StopStrings
from paddock.types import GenerateRequest, MediaSpan, PoolRequest
from paddock.worker.constraints import Compiler
from paddock.worker.fair_threads import FairThreads
from paddock.worker.logs import log_error, log_warning
from paddock.worker.prompts import PromptReader, Read, Reply

_COMPILED_AT_ONCE, _COMPILED_PER_KEY = 4, 2


@dataclass(slots=True, frozen=True)
class PreparedPrompt:
    tokens: list[int]
    named_tokens: list[tuple[int, bytes]] | None
    """The tokens with their names, if the request asks for them."""
    sampler: Any
    """The prototype of the answers' samplers. It never samples itself."""
    stops: StopStrings
    reply: Reply | None
    text: str | None = None
    """As in `Read`."""
    system_size: int = 0
    """As in `Read`."""
    media: tuple[MediaSpan, ...] = ()
    """As in `Read`."""


Inputs = list[list[int]]
Outcome = PreparedPrompt | Inputs | PaddockError


@dataclass(slots=True, frozen=True)
class Prepared:
    id: int
    request: GenerateRequest | PoolRequest
    outcome: Outcome


class Preparer(ABC):
    """The prompt thread and its queue of requests. API keys take turns. The I/O thread calls `add` and `remove`."""

    def __init__(self, post: Callable[[Prepared], None], is_live: Callable[[int], bool]) -> None:
        self._post = post
        self._is_live = is_live
        # One thread: the prompts of a key stay in order, and a long prompt does not delay running streams.
        self._thread = FairThreads("prompts")

    def add(self, id: int, request: GenerateRequest | PoolRequest) -> None:
        self._thread.add(request.origin, lambda: self._run(id, request, lambda: self._prepare(id, request)), id=id)

    def remove(self, id: int) -> None:
        self._thread.remove(id)

    @abstractmethod
    def _prepare(self, id: int, request: Any) -> PreparedPrompt | Inputs | None:
        """Runs on the prompt thread. None: another thread finishes the request, with `_run`."""

    def _run(
        self, id: int, request: GenerateRequest | PoolRequest, work: Callable[[], PreparedPrompt | Inputs | None]
    ) -> None:
        """Post the result of `work`, or the error that the client receives."""
        if not self._is_live(id):
            return  # the client has disconnected
        outcome: Outcome | None
        try:
            outcome = work()
        except PaddockError as error:
            outcome = error
        except BaseException as error:  # a panic in llguidance is no `Exception`
            log_error("cannot prepare a request", request_id=getattr(request, "request_id", ""))
            outcome = PaddockError(f"cannot prepare the request: {type(error).__name__}: {error}")
        if outcome is not None:
            self._post(Prepared(id, request, outcome))


class PromptPreparer(Preparer):
    """For models that generate text. Constraints are compiled on threads of their own: no other prompt waits for it."""

    def __init__(
        self, engine: Engine, prompts: PromptReader, post: Callable[[Prepared], None], is_live: Callable[[int], bool]
    ) -> None:
        super().__init__(post, is_live)
        self._engine = engine
        self._prompts = prompts
        self._compiler = Compiler(engine.grammars.compile, prepare=engine.grammars.prepare)
        self._threads = FairThreads("constraints", _COMPILED_AT_ONCE, per_key=_COMPILED_PER_KEY)

    def _prepare(self, id: int, request: GenerateRequest) -> PreparedPrompt | None:
        read = self._prompts.read(request)
        if read.constraint is None:
            return self._finish(request, read)
        self._threads.add(request.origin, lambda: self._run(id, request, lambda: self._finish(request, read)))
        return None

    def _finish(self, request: GenerateRequest, read: Read) -> PreparedPrompt:
        grammar = self._compile(read, request.origin.key)
        name = self._engine.vocab.name
        return PreparedPrompt(
            read.tokens,
            [(token, name(token)) for token in read.tokens] if request.echo else None,
            self._engine.sampler(request.sampling, read.tokens, grammar),
            StopStrings(request.stop),
            read.reply,
            read.text,
            read.system_size,
            read.media,
        )

    def _compile(self, read: Read, key: str) -> Any:
        if read.constraint is None:
            return None
        try:
            return self._compiler.compile(read.constraint, key)
        except InvalidRequest as error:
            if not read.is_optional:
                raise
            log_warning("tool schemas of a request are not enforced", reason=error.message)
            return None
