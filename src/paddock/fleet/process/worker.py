"""One worker process as the gateway sees it: spawned, loading, ready, gone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from typing import IO, Any, Protocol, cast

import msgspec
import structlog

from paddock.errors import (
    IllegalInstruction,
    ModelLoadFailed,
    OutOfMemory,
    PaddockError,
    Unavailable,
    WorkerCrashed,
)
from paddock.fleet.catalogue.model import Model
from paddock.fleet.process.attempt import Attempt
from paddock.fleet.process.environment import environment, has_gpu
from paddock.fleet.process.output import parse_line
from paddock.fleet.process.watchdog import Vigil
from paddock.tally import Levels, Tally
from paddock.types import (
    EngineOptions,
    GenerateRequest,
    ModelInfo,
    PoolRequest,
    Sandbox,
    SandboxState,
    SlotAction,
    SlotState,
    TextQuestion,
    TreeView,
)
from paddock.wire import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    ActOnSlot,
    Ask,
    Beat,
    FrameError,
    Generate,
    LimitCache,
    Load,
    LoadFailed,
    Loading,
    Look,
    Ping,
    Pool,
    Pooled,
    Pooling,
    Ready,
    Refused,
    SlotDone,
    Slots,
    Stats,
    Step,
    Stop,
    Text,
    ToGateway,
    Tokens,
    TokensPart,
    ToWorker,
    View,
    Watch,
    encode,
    reader_for_gateway,
)

_log = structlog.get_logger(__name__)
_EXIT_WAIT = 2.0
_LOOK_WAIT = 10.0
_STDERR_LINES = 40


class Owner(Protocol):
    """Who is told what happens to a worker."""

    def worker_progressed(self, worker: WorkerProcess) -> None:
        """Its loading is further than it was."""

    def worker_counted(self, worker: WorkerProcess, tally: Tally) -> None:
        """It has done this since it last said so."""

    def worker_unused(self, worker: WorkerProcess) -> None:
        """The last of those who used it is done."""

    def worker_gone(self, worker: WorkerProcess) -> None:
        """The process has ended, and everything under way with it."""


class WorkerProcess(asyncio.Protocol):
    """Started with `spawn`, of use after `load`. Everything here runs on the gateway's event loop."""

    def __init__(self, turns: IO[bytes], owner: Owner) -> None:
        self.model = ""
        self._turns = turns
        self.progress = 0.0
        self.info: ModelInfo | None = None
        self.sandbox = SandboxState()
        """What its process is kept from doing, once its model is loaded."""
        self.completed = 0
        """How many requests it has answered to their end."""
        self.end = ""
        """How it ended, if it did so by itself."""
        self.end_cause = ""
        """The same in a word: a signal's name, `exit`, `protocol`, or `hang`."""
        self.levels: Levels | None = None
        """How things stand in it, as it last said."""
        self.view: View | None = None
        """What it last showed of itself, while somebody looks on."""
        self.tree: TreeView | None = None
        """The last tree that it showed."""
        self._watched = False
        self._shown = asyncio.Event()
        self._owner = owner
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = reader_for_gateway()
        self._ready: asyncio.Future[ModelInfo] = asyncio.get_running_loop().create_future()
        self._attempts: dict[int, Attempt] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._begun: dict[int, Callable[[int], None]] = {}
        """Who is told how far the inputs of a request have come."""
        self._parts: dict[int, bytearray] = {}
        """What has come of long answers to questions about text."""
        self._asking = 0
        self._pooling = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._vigil = Vigil()
        self._next_look: asyncio.TimerHandle | None = None
        self._ids = itertools.count(1)
        self._problem: PaddockError | None = None
        self._stopping = False
        self._killed = False
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._stopping

    @property
    def running(self) -> int:
        """How many requests are under way here."""
        return len(self._attempts) + self._pooling

    @property
    def busy(self) -> bool:
        """Whether anybody uses it. Who only looks at it does not."""
        return bool(self._attempts) or self._asking > 0

    async def spawn(self, options: EngineOptions, *, ahead: bool = False) -> None:
        """Start the process; `ahead` of any model, so that it gets ready for one in its own time."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                # -P: a file in the working directory must not shadow a module. A session of its own: Ctrl-C is ours.
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "paddock.worker", str(theirs.fileno()), str(self._turns.fileno()),
                    *(["ahead"] if ahead else []),
                    pass_fds=(theirs.fileno(), self._turns.fileno()), start_new_session=True, env=environment(options),
                    stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                )  # fmt: skip
            self._following = self._keep(self._follow_output())
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except OSError as error:
            ours.close()
            raise ModelLoadFailed(f"cannot start a worker: {error}") from error
        except BaseException:  # called off
            ours.close()
            raise

    async def load(self, model: Model, options: EngineOptions) -> None:
        """Wait until this model is loaded. Raises `ModelLoadFailed`; then it is of no use any more."""
        self.model, within = model.name, model.load_timeout
        self._vigil = Vigil(model.silence_timeout, model.hang_timeout)
        self._send(Load(PROTOCOL_VERSION, model.path, options, _sandbox(model)))
        self._keep_vigil()
        try:
            self.info = await asyncio.wait_for(asyncio.shield(self._ready), within)
        except TimeoutError:
            raise ModelLoadFailed(f"{self.model} was not loaded within {within:g} s", retry_after=within) from None

    def generate(self, request: GenerateRequest) -> Attempt:
        """Send a request."""
        id = next(self._ids)
        attempt = Attempt(self, id, request.n, request.adapters)
        if not self.alive:
            attempt.put(self._problem or WorkerCrashed(f"the worker of {self.model} is gone", retry_after=1))
            return attempt
        self._attempts[id] = attempt
        self._unused.clear()
        self._keep_vigil()
        self._send(Generate(id, request))
        return attempt

    async def pool(self, request: PoolRequest, begun: Callable[[int], None]) -> Pooled:
        """Send inputs and wait for their vectors. `begun` receives the number of tokens computed so far."""
        id = next(self._ids)
        self._begun[id] = begun
        self._pooling += 1
        try:
            return cast(Pooled, await self._use(Pool(id, request)))
        finally:
            self._pooling -= 1
            del self._begun[id]

    def forget(self, id: int) -> None:
        if self._take(id) is not None:
            self._send(Abort(id))

    async def slots(self) -> list[SlotState]:
        """How the running places are, between two steps of the engine."""
        try:
            return cast(Slots, await asyncio.wait_for(self._ask(Look(next(self._ids))), _LOOK_WAIT)).slots
        except TimeoutError:
            raise Unavailable(f"the worker of {self.model} is in the middle of a long step", retry_after=1) from None

    def watch(self, *, on: bool) -> None:
        """Have it show itself, or no longer. Neither is use of it."""
        self._watched = on
        self.view = self.tree = None
        self._shown.clear()
        self._send(Watch(on))

    def limit_cache(self, ram_bytes: int) -> None:
        """Have it keep no more host memory than this for prefixes. That is no use of it."""
        self._send(LimitCache(ram_bytes))

    async def shown(self) -> None:
        """Wait until it has shown itself."""
        await self._shown.wait()

    async def act(self, action: SlotAction) -> SlotDone:
        """Have something done to a slot, however long it takes until that is free."""
        return cast(SlotDone, await self._use(ActOnSlot(next(self._ids), action)))

    async def ask(self, question: TextQuestion) -> Tokens | Text:
        """Have a question about text answered."""
        return cast(Tokens | Text, await self._use(Ask(next(self._ids), question)))

    async def unused(self) -> None:
        """Wait until nobody uses it."""
        await self._unused.wait()

    def fail_all(self, error: PaddockError) -> None:
        """End everything under way with this error."""
        for id, attempt in list(self._attempts.items()):
            attempt.put(error)
            self.forget(id)
        for question in self._questions.values():
            if not question.done():
                question.set_exception(error)

    async def stop(self) -> None:
        """End the process, politely and then not, and wait until it is gone."""
        self._stopping = True
        self._send(Stop())
        if self._process is None:
            return
        try:
            await asyncio.wait_for(self._process.wait(), _EXIT_WAIT)
        except TimeoutError:
            self._kill()
            await self._process.wait()
        if self._transport is not None:
            self._transport.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
            if not messages or not all(isinstance(message, View) for message in messages):
                self._vigil.heard()  # a view comes from a thread of its own, whether or not the others live
            for message in messages:
                self._on_message(message)
        except FrameError as error:
            self._problem = WorkerCrashed(f"the worker of {self.model} broke the protocol: {error}", retry_after=1)
            self.end_cause = "protocol"
            self._kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._next_look is not None:
            self._next_look.cancel()
        self._keep(self._bury())

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_message(self, message: ToGateway) -> None:
        match message:
            case Step(deltas):
                for delta in deltas:
                    if (attempt := self._attempts.get(delta.id)) is not None:
                        attempt.put(delta)
                        if delta.finish is not None:
                            attempt.unfinished -= 1
                            if not attempt.unfinished:
                                self.completed += 1
                                self._take(delta.id)
            case Accepted(id):
                if (attempt := self._attempts.get(id)) is not None:
                    attempt.put(message)
            case Refused(id, problem):
                if (attempt := self._take(id)) is not None:
                    attempt.put(problem.error())
                elif (question := self._questions.get(id)) is not None and not question.done():
                    question.set_exception(problem.error())
            case TokensPart(id, listed):
                if id in self._questions:
                    self._parts.setdefault(id, bytearray()).extend(listed)
            case Tokens(id) if id in self._parts:
                if not (question := self._questions[id]).done():
                    listed = bytes(self._parts.pop(id) + message.listed)
                    question.set_result(msgspec.structs.replace(message, listed=listed))
            case Pooling(tokens):
                for id, count in tokens:
                    if (begun := self._begun.get(id)) is not None:
                        begun(count)
            case Pooled(id) | Slots(id) | SlotDone(id) | Tokens(id) | Text(id):
                if (question := self._questions.get(id)) is not None and not question.done():
                    question.set_result(message)
            case View():
                if self._watched:
                    self.view, self.tree = message, message.tree or self.tree
                    self._shown.set()
            case Beat(in_step):
                self._vigil.told(in_step)
            case Stats(tally, levels):
                self.levels = levels
                self._owner.worker_counted(self, tally)
            case Loading(progress):
                self.progress = progress
                self._owner.worker_progressed(self)
            case Ready(_, info, sandbox):
                self.sandbox = sandbox
                if sandbox.missing:
                    _log.warning(
                        "the worker is not fully sandboxed", model=self.model, pid=self.pid, active=sandbox.active,
                        missing=sandbox.missing,
                    )  # fmt: skip
                if not self._ready.done():
                    self._ready.set_result(info)
            case LoadFailed(problem):
                self._problem = problem.error() if self.info is None else self._crashed(problem.message)

    def _crashed(self, reason: str) -> WorkerCrashed:
        """Whatever ends the worker of a loaded model is a crash."""
        return WorkerCrashed(f"the worker of {self.model} ended: {reason}", retry_after=1)

    def _take(self, id: int) -> Attempt | None:
        attempt = self._attempts.pop(id, None)
        self._settle()
        return attempt

    async def _use(self, message: ActOnSlot | Pool | Ask) -> Any:
        """A question that counts as use."""
        self._asking += 1
        self._unused.clear()
        try:
            answer = await self._ask(message)
            self.completed += 1
            return answer
        finally:
            self._asking -= 1
            self._settle()

    async def _ask(self, message: Look | ActOnSlot | Pool | Ask) -> Any:
        """Send a message and wait for the reply to it."""
        if not self.alive:
            raise self._problem or WorkerCrashed(f"the worker of {self.model} is gone", retry_after=1)
        question = self._questions[message.id] = asyncio.get_running_loop().create_future()
        self._keep_vigil()
        self._send(message)
        try:
            return await question
        except asyncio.CancelledError:
            self._send(Abort(message.id))
            raise
        finally:
            del self._questions[message.id]
            self._parts.pop(message.id, None)

    def _settle(self) -> None:
        if not self.busy and not self._unused.is_set():
            self._unused.set()
            self._owner.worker_unused(self)

    def _keep_vigil(self) -> None:
        """Something is under way now: see to it that the worker lives, until it is at rest again."""
        self._vigil.given_work()
        if self._next_look is None:
            self._vigil.begin()
            self._look_later()

    def _look_later(self) -> None:
        at_rest = self.info is not None and not self._attempts and not self._questions
        self._vigil.asked(idle=at_rest)
        self._send(Ping())
        self._next_look = asyncio.get_running_loop().call_later(self._vigil.interval, self._look)

    def _look(self) -> None:
        self._next_look = None
        if not self.alive or self._vigil.at_rest:
            return
        reason = self._vigil.look()
        if reason:
            self._give_up(reason)
        else:
            self._look_later()

    def _give_up(self, reason: str) -> None:
        """It hangs. Whoever waits is told now: a process that is stuck in a driver may outlive its death sentence."""
        _log.error("worker hangs", model=self.model, pid=self.pid, reason=reason, output=list(self._stderr))
        self._problem = WorkerCrashed(
            f"the worker of {self.model} hung and was ended: {reason}; the next request loads it again", retry_after=1
        )
        self._stopping = True
        self.end, self.end_cause = self._problem.message, "hang"
        self.fail_all(self._problem)
        self._kill()

    async def _bury(self) -> None:
        """The connection is gone, so the process is ending or dead: find out how, and tell whoever waits."""
        assert self._process is not None, "there was a connection"
        try:
            status = await asyncio.wait_for(self._process.wait(), _EXIT_WAIT)
        except TimeoutError:
            self._kill()
            status = await self._process.wait()
        error = self._problem or WorkerCrashed(
            f"the worker of {self.model} ended unexpectedly ({_how(status)}); the next request loads it again",
            retry_after=1,
        )
        if not self._ready.done():
            self._ready.set_exception(self._problem or self._why_not_loaded(status))
            self._ready.exception()  # retrieved, should nobody be waiting any more
        if not self._stopping:
            if self._following is not None:  # the last lines of its output
                await asyncio.wait({self._following}, timeout=_EXIT_WAIT)
            _log.error("worker gone", model=self.model, status=_how(status), output=list(self._stderr))
            self.end, self.end_cause = error.message, self.end_cause or _cause(status)
        self._stopping = True
        self.fail_all(error)
        self._owner.worker_gone(self)

    def _why_not_loaded(self, status: int) -> ModelLoadFailed:
        said = f"{self.model} could not be loaded: its worker "
        if status == -signal.SIGILL:
            return IllegalInstruction(f"{said}ended with {_how(status)}")
        if status == -signal.SIGKILL and not self._killed:
            return OutOfMemory(f"{said}was killed (SIGKILL), as the kernel does when memory runs out")
        return ModelLoadFailed(f"{said}ended with {_how(status)}")

    async def _follow_output(self) -> None:
        assert self._process is not None, "spawned before it is followed"
        assert self._process.stdout is not None, "spawned with a pipe"
        while line := await _line(self._process.stdout):
            level, message, fields = parse_line(line.decode("utf-8", "replace").rstrip())
            self._stderr.append(message)
            getattr(_log, level)(message, model=self.model, pid=self.pid, **fields)

    def _send(self, message: ToWorker) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def _kill(self) -> None:
        self._killed = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _keep(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _sandbox(model: Model) -> Sandbox:
    """What a worker with this model may open: its files, and the folder that slots are saved to."""
    files = (*(file.path for file in (*model.files, *model.draft)), *(adapter.path for adapter in model.adapters))
    writable = (model.slot_save_path,) if model.slot_save_path else ()
    return Sandbox(model.sandbox, () if model.is_fake else (model.path, *files), writable, gpu=has_gpu())


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or what there is of one that is longer than the reader's limit."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


def _cause(status: int) -> str:
    """One of few words, whatever the status."""
    return "exit" if status >= 0 else _how(status)


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
