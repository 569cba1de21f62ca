"""Preparing requests for the engine: prompts are tokenized and constraints compiled, away from the I/O thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from paddock.engine import Engine
from paddock.errors import InvalidRequest, PaddockError
from paddock.text import StopStrings
from paddock.types import GenerateRequest, PoolRequest
from paddock.worker.constraints import Compiler
from paddock.worker.fair_threads import FairThreads
from paddock.worker.inputs import InputReader
from paddock.worker.logs import log_error, log_warning
from paddock.worker.prompts import PromptReader, Read, Reply

_COMPILED_AT_ONCE, _COMPILED_PER_KEY = 4, 2
T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class PreparedPrompt:
    tokens: list[int]
    named_tokens: list[tuple[int, bytes]] | None
    """The tokens with their names, if the request asks for them."""
    sampler: Any
    """The prototype of the answers' samplers. It never samples itself."""
    stops: StopStrings
    reply: Reply | None


Inputs = list[list[int]]
Outcome = PreparedPrompt | Inputs | PaddockError


@dataclass(slots=True, frozen=True)
class Prepared:
    id: int
    request: GenerateRequest | PoolRequest
    outcome: Outcome


class Preparer:
    """Prepares a request for one kind of model. `prepare` runs on the prompt thread, and `done` on any thread."""

    def prepare(self, request: Any, is_live: Callable[[], bool], done: Callable[[Outcome], None]) -> None:
        raise NotImplementedError


class Preparation:
    """The prompt thread and its queue of requests. API keys take turns. The I/O thread calls all methods."""

    def __init__(self, post: Callable[[Prepared], None], is_live: Callable[[int], bool]) -> None:
        self._post = post
        self._is_live = is_live
        self.preparer: Preparer | None = None
        """Set when the model is loaded."""
        # One thread: the prompts of a key stay in order, and a long prompt does not delay running streams.
        self._thread = FairThreads("prompts")

    def add(self, id: int, request: GenerateRequest | PoolRequest) -> None:
        self._thread.add(request.origin, lambda: self._prepare(id, request), id=id)

    def remove(self, id: int) -> None:
        self._thread.remove(id)

    def _prepare(self, id: int, request: GenerateRequest | PoolRequest) -> None:
        """Runs on the prompt thread."""
        assert self.preparer is not None, "the gateway sends no request before Ready"
        if self._is_live(id):  # the client may have disconnected
            self.preparer.prepare(
                request,
                is_live=lambda: self._is_live(id),
                done=lambda outcome: self._post(Prepared(id, request, outcome)),
            )


class PromptPreparer(Preparer):
    """For models that generate text. Constraints are compiled on threads of their own: no other prompt waits for it."""

    def __init__(self, engine: Engine, prompts: PromptReader) -> None:
        self._engine = engine
        self._prompts = prompts
        self._compiler = Compiler(engine.compile, prepare=engine.prepare_constraints)
        self._threads = FairThreads("constraints", _COMPILED_AT_ONCE, per_key=_COMPILED_PER_KEY)

    def prepare(self, request: GenerateRequest, is_live: Callable[[], bool], done: Callable[[Outcome], None]) -> None:
        read = attempt(lambda: self._prompts.read(request), "prompt", request.request_id)
        if isinstance(read, PaddockError):
            done(read)
            return

        def finish() -> None:
            if is_live():  # nothing is compiled for a client that has disconnected
                done(attempt(lambda: self._finish(request, read), "prompt", request.request_id))

        if read.constraint is None:
            finish()
        else:
            self._threads.add(request.origin, finish)

    def _finish(self, request: GenerateRequest, read: Read) -> PreparedPrompt:
        grammar = self._compile(read, request.origin.key)
        name = self._engine.vocab.name
        return PreparedPrompt(
            read.tokens,
            [(token, name(token)) for token in read.tokens] if request.echo else None,
            self._engine.sampler(request.sampling, read.tokens, grammar),
            StopStrings(request.stop),
            read.reply,
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


class InputPreparer(Preparer):
    """For models that compute embeddings or scores."""

    def __init__(self, inputs: InputReader) -> None:
        self._inputs = inputs

    def prepare(self, request: PoolRequest, is_live: Callable[[], bool], done: Callable[[Outcome], None]) -> None:
        done(attempt(lambda: self._inputs.read(request), "input", ""))


def attempt(work: Callable[[], T], what: str, request_id: str) -> T | PaddockError:
    """The result, or the error that the client receives."""
    try:
        return work()
    except PaddockError as error:
        return error
    except Exception as error:
        log_error(f"cannot prepare the {what}", request_id=request_id)
        return PaddockError(f"cannot prepare the {what}: {type(error).__name__}: {error}")
