"""The worker's main thread: reads requests, has their prompts prepared, and hands them to the engine.

It alone owns the table of live requests. The engine thread and the prompt thread tell it things through `_post`, so
that nothing here needs a lock; answers go from the engine thread straight to the outbox.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import selectors
import socket
import statistics
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import msgspec

from paddock.engine import load_libraries
from paddock.errors import InvalidRequest, ModelLoadFailed, PaddockError, QueueFull, WorkerCrashed
from paddock.scheduling import FairQueue, Job, Request, has_place
from paddock.text import StopStrings
from paddock.types import (
    DraftParams,
    EngineOptions,
    GenerateRequest,
    Origin,
    PoolRequest,
    Sandbox,
    SandboxState,
)
from paddock.wire import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    Beat,
    Detokenize,
    FrameError,
    Generate,
    LimitCache,
    Load,
    LoadFailed,
    Loading,
    Look,
    Ping,
    Pool,
    Problem,
    ReadPrompt,
    Ready,
    Refused,
    Render,
    SlotAction,
    Stop,
    Tokenize,
    ToWorker,
    Watch,
    encode,
    reader_for_worker,
)
from paddock.worker.answers import Answer
from paddock.worker.constraints import Compiler
from paddock.worker.engine_thread import (
    Add,
    Command,
    Ended,
    EngineThread,
    Event,
    Failed,
    Opened,
    Remove,
    Report,
    Resize,
)
from paddock.worker.fair_pool import FairPool
from paddock.worker.inputs import InputReader
from paddock.worker.logs import log_error, log_warning
from paddock.worker.native_thread import Died, Opening
from paddock.worker.outbox import Outbox
from paddock.worker.pooled_thread import AddJob, PooledOpened, PooledThread, Vectors
from paddock.worker.prompts import PromptReader, Read, Reply
from paddock.worker.questions import TextQuestions
from paddock.worker.sandbox import confine_calls, confine_files
from paddock.worker.slot_actions import SlotActions
from paddock.worker.turns import Turns
from paddock.worker.watching import EngineViews, Watching

_PROGRESS_STEP = 0.02
_REMEMBERED_ENDS = 16
_COMPILED_AT_ONCE, _COMPILED_PER_KEY = 4, 2
T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class _Prepared:
    request: GenerateRequest
    outcome: _Prompt | PaddockError


@dataclass(slots=True, frozen=True)
class _PreparedInputs:
    request: PoolRequest
    outcome: list[list[int]] | PaddockError


@dataclass(slots=True, frozen=True)
class _Unoccupied:
    """The prompt thread can take the next one."""


_Posted = Event | PooledOpened | _Prepared | _PreparedInputs | _Unoccupied


@dataclass(slots=True, frozen=True)
class _Prompt:
    """What the engine needs of a request that was understood."""

    tokens: list[int]
    names: list[tuple[int, bytes]] | None
    """The same with their names, for a client that wants to see them."""
    sampler: Any
    """What those of the answers are made of. Nothing is ever chosen by it."""
    stops: StopStrings
    reply: Reply | None


@dataclass(slots=True, eq=False)
class _Unprepared:
    """A request whose prompt, or inputs, nobody has looked at yet."""

    request: GenerateRequest | PoolRequest
    key: str
    weight: float
    batch: bool
    arrival: int


@dataclass(slots=True)
class _Live:
    """A request that has not ended yet."""

    origin: Origin
    answers: int = 1
    """How many of them are not complete."""
    wanted: int = 1
    begun: int = 0
    """How many of them the engine was told of."""
    begin: Callable[[int], None] | None = None
    """Tell it of the answer with this index; None while the prompt is being prepared, and where there is one answer."""


class Worker:
    def __init__(self, sock: socket.socket, turns: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reader = reader_for_worker()
        self._posted: deque[_Posted] = deque()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        # One thread, so that prompts of a key are prepared in the order they came and a long one delays no stream.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="prompts")
        self._unprepared: FairQueue[_Unprepared] = FairQueue()
        self._is_preparing = False
        self._arrivals = 0
        self._constraining = FairPool("constraints", _COMPILED_AT_ONCE, per_key=_COMPILED_PER_KEY)
        self._compiler: Compiler | None = None
        self._turns = turns
        self._options = EngineOptions()
        self._sandbox = SandboxState()
        self._engine: EngineThread | PooledThread | None = None
        self._opened: Opened | None = None
        self._prompts: PromptReader | None = None
        self._inputs: InputReader | None = None
        self._n_slots = 1
        self._slot_actions: SlotActions | None = None
        self._questions: TextQuestions | None = None
        self._watching: Watching | None = None
        self._outbox = Outbox(sock, self._wake)
        self._live: dict[int, _Live] = {}
        self._between_ends: deque[float] = deque(maxlen=_REMEMBERED_ENDS)
        self._last_end = 0.0
        """Of a request; or when the first one came after nobody had asked for a while."""
        self._reported = 0.0

    def run(self) -> NoReturn:
        try:
            self._run()
        except Exception as error:
            log_error("the worker failed")
            self._give_up(WorkerCrashed(f"the worker failed ({type(error).__name__}: {error})", retry_after=1))

    def _run(self) -> NoReturn:
        while True:
            for key, ready in self._selector.select():
                if key.fileobj is not self._sock:
                    self._drain_wakeups()
                elif ready & selectors.EVENT_READ:
                    self._receive()
            self._handle_posted()
            self._flush()

    # ── the wire ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self) -> None:
        try:
            data = self._sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the gateway is gone, and with it every reason to be here
            _leave(0)
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
        except FrameError as error:
            sys.stderr.write(f"<3>{error}\n")
            _leave(1)

    def _flush(self) -> None:
        self._outbox.flush()
        if self._outbox.broken:
            _leave(0)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox.blocked else 0)
        if self._selector.get_key(self._sock).events != events:
            self._selector.modify(self._sock, events)

    def _on_message(self, message: ToWorker) -> None:
        match message:
            case Load(version, model_path, options, sandbox):
                if version != PROTOCOL_VERSION:
                    self._give_up(ModelLoadFailed(f"the worker speaks protocol {PROTOCOL_VERSION}, not {version}"))
                self._options = options
                self._confine_files(sandbox)
                turns = Turns(self._turns, threads=options.n_threads, cores=os.cpu_count() or 1)
                thread = EngineThread if options.pooling is None else PooledThread
                self._engine = thread(
                    model_path,
                    options,
                    turns,
                    self._post,
                    self._outbox.send,
                    lambda: self._confine_calls(sandbox, model_path),
                )
                self._engine.start()
            case Generate(request) | Pool(request):
                self._handle_posted()  # who was told the last of an answer finds its place free
                self._enter(request)
            case Abort(id):
                if self._questions is not None:
                    self._questions.abort(id)
                self._live.pop(id, None)
                for waiting in [one for one in self._unprepared if one.request.id == id]:
                    self._unprepared.remove(waiting)
                self._tell_engine(Remove(id))
            case Look(id):
                self._tell_engine(Report(id))
            case Watch(on):
                assert self._watching is not None, "the gateway watches nobody before Ready"
                self._watching.turn(on=on)
            case LimitCache(ram_bytes):
                if self._slot_actions is not None:
                    self._slot_actions.ram_bytes = ram_bytes
                self._tell_engine(Resize(ram_bytes))
            case SlotAction():
                assert self._slot_actions is not None, "the gateway asks for nothing before Ready"
                self._slot_actions.begin(message)
            case Tokenize() | Detokenize() | Render() | ReadPrompt():
                assert self._questions is not None, "the gateway asks for nothing before Ready"
                self._questions.begin(message)
            case Ping():
                self._outbox.send(Beat(self._engine.in_step if self._engine is not None else 0.0))
            case Stop():
                if self._engine is not None:
                    self._outbox.send(self._engine.counting.last())
                _leave(0)

    # ── the sandbox ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _confine_files(self, sandbox: Sandbox) -> None:
        """Here and now, before there is a second thread: those that are started later inherit it."""
        try:
            self._sandbox = confine_files(sandbox)
        except PaddockError as error:
            self._give_up(error)

    def _confine_calls(self, sandbox: Sandbox, model_path: str) -> None:
        """Runs on the engine thread, when the libraries are loaded and nothing of the model has been read."""
        load_libraries(model_path)
        self._sandbox = confine_calls(sandbox, self._sandbox)

    # ── the other threads ────────────────────────────────────────────────────────────────────────────────────────────

    def _post(self, event: _Posted) -> None:
        """Hand something to this thread. Called from the others; never blocks."""
        self._posted.append(event)
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_out, b"\0")
        except BlockingIOError:
            pass  # a full pipe wakes just as well

    def _drain_wakeups(self) -> None:
        try:
            os.read(self._wake_in, 4096)
        except BlockingIOError:
            pass

    def _prepare(self, request: GenerateRequest) -> None:
        """Runs on the prompt thread."""
        assert self._prompts is not None, "the gateway sends no request before Ready"
        prompts = self._prompts
        if request.id not in self._live:  # aborted on the way to this thread
            self._post(_Unoccupied())
            return
        read = self._attempt(request, lambda: prompts.read(request))
        if isinstance(read, Read) and read.constraint is not None:
            # Which nobody else's prompt waits for.
            self._constraining.submit(request.origin, partial(self._complete, request, read))
        else:
            self._complete(request, read)
        self._post(_Unoccupied())

    def _complete(self, request: GenerateRequest, read: Read | PaddockError) -> None:
        if request.id not in self._live:
            return  # aborted meanwhile: nothing is compiled for nobody
        outcome = read if isinstance(read, PaddockError) else self._attempt(request, lambda: self._ready(request, read))
        self._post(_Prepared(request, outcome))

    def _ready(self, request: GenerateRequest, read: Read) -> _Prompt:
        assert self._opened is not None, "prompts are read when the engine is open"
        assert self._compiler is not None, "which gives it its work"
        engine = self._opened.engine
        grammar = _compiled(self._compiler, read, request.origin.key)
        return _Prompt(
            read.tokens,
            names=[(token, engine.vocab.name(token)) for token in read.tokens] if request.echo else None,
            sampler=engine.sampler(request.sampling, read.tokens, grammar),
            stops=StopStrings(request.stop),
            reply=read.reply,
        )

    def _attempt(self, request: GenerateRequest, work: Callable[[], T]) -> T | PaddockError:
        try:
            return work()
        except PaddockError as error:
            return error
        except Exception as error:
            log_error("a prompt could not be prepared", request_id=request.request_id)
            return PaddockError(f"the prompt could not be prepared: {type(error).__name__}: {error}")

    def _prepare_inputs(self, request: PoolRequest) -> None:
        """Runs on the prompt thread too."""
        outcome: list[list[int]] | PaddockError
        try:
            assert self._inputs is not None, "the gateway asks nobody for vectors who does not make them"
            outcome = self._inputs.read(request)
        except PaddockError as error:
            outcome = error
        except Exception as error:
            log_error("inputs could not be prepared")
            outcome = PaddockError(f"the inputs could not be prepared: {type(error).__name__}: {error}")
        self._post(_PreparedInputs(request, outcome))
        self._post(_Unoccupied())

    def _handle_posted(self) -> None:
        while self._posted:
            match self._posted.popleft():
                case Ended(id):
                    self._end(id)
                case _Prepared(request, outcome):
                    self._admit(request, outcome)
                case _PreparedInputs(pooling, inputs):
                    self._admit_inputs(pooling, inputs)
                case _Unoccupied():
                    self._prepare_next()
                case Failed(id, error):
                    if self._live.pop(id, None) is not None:
                        self._outbox.send(Refused(id, Problem.of(error)))
                case Opening(progress):
                    if progress >= self._reported + _PROGRESS_STEP:
                        self._reported = progress
                        self._outbox.send(Loading(progress))
                case Opened() as opened:
                    info = opened.engine.info
                    self._opened = opened
                    self._n_slots = info.n_slots
                    self._compiler = Compiler(opened.engine.compile, prepare=opened.engine.prepare_constraints)
                    self._prompts = PromptReader(opened.engine.vocab, info)
                    self._slot_actions = SlotActions(opened.engine, self._tell_engine, self._outbox.send)
                    self._questions = TextQuestions(
                        opened.engine, self._prompts, self._outbox.send, self._outbox.send_behind
                    )
                    assert isinstance(self._engine, EngineThread), "which has opened it"
                    self._watching = Watching(EngineViews(self._engine, opened.engine), self._outbox.send)
                    self._outbox.send(Ready(PROTOCOL_VERSION, info, self._sandbox))
                case PooledOpened(pooled):
                    assert isinstance(self._engine, PooledThread), "which has opened it"
                    self._watching = Watching(self._engine.look, self._outbox.send)
                    self._inputs = InputReader(pooled)
                    self._outbox.send(Ready(PROTOCOL_VERSION, pooled.info, self._sandbox))
                case Died(error):
                    self._give_up(error)

    def _tell_engine(self, command: Command) -> None:
        if self._engine is not None:
            self._engine.tell(command)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _enter(self, request: GenerateRequest | PoolRequest) -> None:
        """Take it, unless there is no room for one more of this key."""
        limit, origin = self._n_slots + self._options.max_queue, request.origin
        answers = request.n if isinstance(request, GenerateRequest) else 1
        if answers > limit:
            many = (
                f"{answers} answers were asked for; this model runs {self._n_slots} and queues {limit - self._n_slots}"
            )
            self._outbox.send(Refused(request.id, Problem.of(InvalidRequest(many, param="n"))))
            return
        present = [(live.origin.key, live.origin.weight, live.answers) for live in self._live.values()]
        if not has_place(origin.key, origin.weight, present, limit, answers):
            total = sum(count for _, _, count in present)
            full = f"{total} answers are running or waiting already, of {limit} at most"
            if total + answers <= limit:
                full += ", and this key has its share of them"
            self._outbox.send(Refused(request.id, Problem.of(QueueFull(full, retry_after=self._next_place()))))
            return
        if not self._live:
            self._last_end = time.monotonic()
        self._live[request.id] = _Live(origin, answers, answers)
        self._arrivals += 1
        self._unprepared.add(_Unprepared(request, origin.key, origin.weight, origin.batch, self._arrivals))
        if not self._is_preparing:
            self._prepare_next()

    def _prepare_next(self) -> None:
        """Have the next prompt prepared; keys take turns, so that nobody waits for another's long ones."""
        waiting = self._unprepared.first()
        self._is_preparing = waiting is not None
        if waiting is None:
            return
        self._unprepared.take(waiting)
        self._unprepared.charge(waiting, 1)
        if isinstance(waiting.request, GenerateRequest):
            self._preparing.submit(self._prepare, waiting.request)
        else:
            self._preparing.submit(self._prepare_inputs, waiting.request)

    def _admit(self, request: GenerateRequest, outcome: _Prompt | PaddockError) -> None:
        if request.id not in self._live:
            return  # its client left while the prompt was being prepared
        if isinstance(outcome, PaddockError):
            del self._live[request.id]
            self._outbox.send(Refused(request.id, Problem.of(outcome)))
            return
        assert self._opened is not None, "a prompt was prepared, so the engine is open"
        engine, tokens = self._opened.engine, outcome.tokens
        self._outbox.send(Accepted(request.id, len(tokens), outcome.names))
        now = time.perf_counter()
        seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        digest = hashlib.sha256(array("i", tokens)).hexdigest() if outcome.reply is not None else ""

        def begin(index: int) -> None:
            # Each answer draws its own numbers; the first the same as if it were alone.
            sampling = msgspec.structs.replace(request.sampling, seed=seed + index)
            self._tell_engine(
                Add(
                    Request(
                        request.id,
                        tokens,
                        outcome.sampler.sibling(sampling),
                        request.max_tokens if request.max_tokens is not None else engine.info.n_ctx,
                        answer=Answer(
                            request,
                            engine.vocab,
                            outcome.reply,
                            stops=outcome.stops,
                            call_ids=f"{seed + index} {digest}",
                            accepted=now,
                        ),
                        index=index,
                        namespace=request.origin.tenant if request.cache_prompt else None,
                        wanted_slot=request.id_slot,
                        deterministic=request.deterministic or self._options.deterministic,
                        adapters=request.adapters or (),
                        prompt_probs=request.prompt_probs,
                        key=request.origin.key,
                        weight=request.origin.weight,
                        batch=request.origin.batch,
                        draft=self._draft(request, outcome.reply),
                    )
                )
            )

        live = self._live[request.id]
        live.begin = begin
        for _ in range(min(request.n, self._n_slots)):
            _begin_next(live)

    def _draft(self, request: GenerateRequest, reply: Reply | None) -> DraftParams | None:
        """How far its answers may be guessed ahead: not at all where a thought may have to be ended at any token."""
        if reply is not None and reply.thinking_budget is not None:
            return None
        wished = {"n_max": request.draft_n_max, "n_min": request.draft_n_min, "p_min": request.draft_p_min}
        given = {name: value for name, value in wished.items() if value is not None}
        return msgspec.structs.replace(self._options.draft, **given)

    def _admit_inputs(self, request: PoolRequest, outcome: list[list[int]] | PaddockError) -> None:
        if request.id not in self._live:
            return  # its client left while the inputs were being prepared
        if isinstance(outcome, PaddockError):
            del self._live[request.id]
            self._outbox.send(Refused(request.id, Problem.of(outcome)))
            return
        assert isinstance(self._engine, PooledThread), "inputs were prepared for it"
        origin = request.origin
        job = Job(request.id, outcome, Vectors(request), key=origin.key, weight=origin.weight, batch=origin.batch)
        self._engine.tell(AddJob(job))

    def _end(self, id: int) -> None:
        live = self._live.get(id)
        if live is None:
            return
        live.answers -= 1
        _begin_next(live)
        if live.answers <= 0:
            del self._live[id]
            now = time.monotonic()
            self._between_ends.append(now - self._last_end)
            self._last_end = now

    def _next_place(self) -> float:
        """Seconds until a place is free, judged by how the last requests ended one after another."""
        return statistics.fmean(self._between_ends) if self._between_ends else 1.0

    def _give_up(self, error: PaddockError) -> NoReturn:
        """Say why, as far as the socket takes it, and leave: the gateway answers whoever is still waiting."""
        self._sock.setblocking(True)
        self._sock.settimeout(2)
        try:
            counted = b"" if self._engine is None else encode(self._engine.counting.last())
            self._sock.sendall(self._outbox.take() + counted + encode(LoadFailed(Problem.of(error))))
        except OSError:
            pass
        _leave(1)


def _begin_next(live: _Live) -> None:
    """Have one more of its answers begun, if any is left. The engine knows no more of them than can run: the rest need
    neither a sampler nor a place in its queue.
    """
    if live.begin is not None and live.begun < live.wanted:
        live.begun += 1
        live.begin(live.begun - 1)


def _compiled(compiler: Compiler, read: Read, key: str) -> Any:
    if read.constraint is None:
        return None
    try:
        return compiler.compile(read.constraint, key)
    except InvalidRequest as error:
        if not read.is_optional:
            raise
        log_warning("the tools of a request are not enforced", reason=error.message)
        return None


def _leave(status: int) -> NoReturn:
    """Exit at once: the engine thread may be deep in native code, and the kernel frees everything."""
    sys.stderr.flush()
    os._exit(status)
