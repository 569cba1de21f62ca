"""The worker's main thread: receives messages, lets requests be prepared, and passes them to the engine thread.

Only this thread uses the table of live requests. The engine thread and the prompt thread post events to it, so nothing
here needs a lock. Answers go from the engine thread directly to the outbox.
"""

from __future__ import annotations

import os
import socket
import time
from typing import NoReturn

from paddock.engine import load_libraries
from paddock.errors import ModelLoadFailed, PaddockError, WorkerCrashed
from paddock.scheduling import Job
from paddock.types import EngineOptions, GenerateRequest, PoolRequest, Sandbox, SandboxState
from paddock.wire import messages
from paddock.worker.cache_reports import CacheReports
from paddock.worker.commands import (
    Add,
    Begun,
    ClearCache,
    Command,
    Died,
    Ended,
    Event,
    Explained,
    Failed,
    Flush,
    Flushed,
    Opened,
    Opening,
    Remove,
    Report,
    ReportCache,
    Resize,
)
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.generation_thread import GenerationThread
from paddock.worker.inputs import InputPreparer
from paddock.worker.io_loop import IoLoop, exit_now
from paddock.worker.live_requests import LiveRequests
from paddock.worker.logs import log_error
from paddock.worker.pooled_steps import Vectors
from paddock.worker.pooling_thread import PoolingThread
from paddock.worker.preparation import Prepared, PreparedPrompt, Preparer, PromptPreparer
from paddock.worker.prompts import PromptReader
from paddock.worker.questions import TextQuestions
from paddock.worker.sandbox import confine_calls, confine_files
from paddock.worker.sequences import scheduler_requests
from paddock.worker.slot_actions import SlotActions
from paddock.worker.view_publisher import EngineViews, ViewPublisher

_PROGRESS_STEP = 0.02
_Event = Event | Prepared


class Worker:
    def __init__(self, sock: socket.socket, cpu_lock: int) -> None:
        """`cpu_lock` is the descriptor of the file that all workers lock."""
        self._io: IoLoop[_Event] = IoLoop(sock, self._on_message, self._on_event)
        self._outbox = self._io.outbox
        self._live = LiveRequests()
        self._preparing: set[int] = set()
        """Requests that the engine thread will be given soon. It reads whether there are any."""
        self._cpu_lock = cpu_lock
        self._options: EngineOptions  # set by `_load`
        self._sandbox = SandboxState()
        self._thread: GenerationThread | PoolingThread | None = None
        self._preparer: Preparer | None = None
        self._input_preparer: Preparer | None = None
        """Prepares embedding requests; the same object if the model does nothing else."""
        self._slot_actions: SlotActions | None = None
        self._questions: TextQuestions | None = None
        self._views: ViewPublisher | None = None
        self._reports: CacheReports  # set by `_on_opened` for a model that generates
        self._reported_progress = 0.0

    def run(self) -> NoReturn:
        try:
            self._io.run()
        except Exception as error:
            log_error("the worker failed")
            self._fail(WorkerCrashed(f"the worker failed ({type(error).__name__}: {error})", retry_after=1))

    # ── messages from the gateway ────────────────────────────────────────────────────────────────────────────────────

    def _on_message(self, message: messages.ToWorker) -> None:
        match message:
            case messages.Load():
                self._load(message)
            case messages.Generate(id, request) | messages.Pool(id, request):
                self._io.handle_events()  # answers that ended just now have made room in the queue
                self._receive(id, request)
            case messages.Abort(id):
                self._abort(id)
            case messages.Look(id):
                self._tell_engine(Report(id))
            case messages.LookAtCache(id):
                self._tell_engine(ReportCache(id))
            case messages.ClearCache(id, tenant):
                if isinstance(self._thread, GenerationThread):
                    self._reports.forget(tenant)
                self._tell_engine(ClearCache(id, tenant))
            case messages.Watch(on):
                assert self._views is not None, "the gateway sends nothing before Ready"
                self._views.turn(on=on)
            case messages.LimitCache(ram_bytes):
                if self._slot_actions is not None:
                    self._slot_actions.ram_bytes = ram_bytes
                self._tell_engine(Resize(ram_bytes))
            case messages.ActOnSlot():
                assert self._slot_actions is not None, "the gateway sends nothing before Ready"
                self._slot_actions.begin(message)
            case messages.Ask(id, question):
                assert self._questions is not None, "the gateway sends nothing before Ready"
                self._questions.begin(id, question)
            case messages.Ping():
                self._outbox.send(messages.Beat(self._thread.in_step if self._thread is not None else 0.0))
            case messages.Stop(flush_seconds):
                if flush_seconds and isinstance(self._thread, GenerationThread):
                    self._thread.tell(Flush(flush_seconds))
                else:
                    self._exit()

    def _load(self, message: messages.Load) -> None:
        if message.version != messages.PROTOCOL_VERSION:
            self._fail(
                ModelLoadFailed(f"the worker speaks protocol {messages.PROTOCOL_VERSION}, not {message.version}")
            )
        model_path, options, sandbox = message.model_path, message.options, message.sandbox
        self._options = options
        self._live.max_queue = options.max_queue
        try:
            # Before the second thread starts: threads inherit the restrictions of the one that starts them.
            self._sandbox = confine_files(sandbox)
        except PaddockError as error:
            self._fail(error)
        self._thread = (GenerationThread if options.pooling is None else PoolingThread)(
            model_path,
            options,
            CpuLock(self._cpu_lock, threads=options.n_threads, cpus=options.cpus or range(os.cpu_count() or 1)),
            self._io.post,
            self._outbox.send,
            lambda: self._confine_calls(sandbox, model_path),
            lambda: bool(self._preparing),
        )
        self._thread.start()

    def _confine_calls(self, sandbox: Sandbox, model_path: str) -> None:
        """Runs on the engine thread, after the libraries are loaded and before the model file is read."""
        load_libraries(model_path)
        self._sandbox = confine_calls(sandbox, self._sandbox)

    def _receive(self, id: int, request: GenerateRequest | PoolRequest) -> None:
        """Queue the request for preparation, or refuse it where the queue is full."""
        try:
            answers = request.n if isinstance(request, GenerateRequest) else 1
            self._live.add(id, request.origin, answers, time.monotonic())
        except PaddockError as error:
            self._refuse(id, error)
        else:
            preparer = self._preparer if isinstance(request, GenerateRequest) else self._input_preparer
            if isinstance(request, GenerateRequest):
                self._preparing.add(id)
            assert preparer is not None, "the gateway sends nothing before Ready"
            preparer.add(id, request)

    def _abort(self, id: int) -> None:
        if self._questions is not None:
            self._questions.abort(id)
        for preparer in (self._preparer, self._input_preparer):
            if preparer is not None:
                preparer.remove(id)
        self._preparing.discard(id)
        self._live.remove(id)
        self._tell_engine(Remove(id))

    # ── events from the other threads ────────────────────────────────────────────────────────────────────────────────

    def _on_event(self, event: _Event) -> None:
        match event:
            case Begun(explanation):
                self._reports.begun(explanation)
            case Explained(delta, explanation):
                self._outbox.send(messages.Step([self._reports.complete(delta, explanation)]))
            case Ended(id, _, explanation):
                self._live.end_answer(id, time.monotonic())
                if explanation is not None:
                    self._reports.ended(explanation)
            case Prepared():
                if event.id in self._live:  # the client may have disconnected
                    self._start(event)
            case Failed(id, error):
                if id in self._live:
                    self._refuse(id, error)
            case Opening(progress):
                if progress >= self._reported_progress + _PROGRESS_STEP:
                    self._reported_progress = progress
                    self._outbox.send(messages.Loading(progress))
            case Opened():
                self._on_opened()
            case Died(error):
                self._fail(error)
            case Flushed():
                self._exit()

    def _on_opened(self) -> None:
        thread, send = self._thread, self._outbox.send
        assert thread is not None, "it posts this event"
        media = thread.engine.media if isinstance(thread, GenerationThread) else None
        prompts = PromptReader(thread.engine.vocab, thread.engine.info, jinja=self._options.jinja, media=media)
        self._questions = TextQuestions(thread.engine, prompts, send, self._outbox.send_behind)
        if isinstance(thread, PoolingThread):
            self._preparer = self._input_preparer = InputPreparer(thread.engine, self._io.post, self._live.__contains__)
            self._views = ViewPublisher(thread.view, send)
        else:
            engine = thread.engine
            self._live.n_slots = engine.info.n_slots
            self._reports = CacheReports(engine.vocab, engine.info.n_vocab, deterministic=self._options.deterministic)
            self._preparer = PromptPreparer(engine, prompts, self._io.post, self._live.__contains__)
            self._input_preparer = InputPreparer(thread.embeddings, self._io.post, self._live.__contains__)
            self._slot_actions = SlotActions(engine, self._tell_engine, send)
            self._views = ViewPublisher(EngineViews(thread, self._reports.views), send)
        send(messages.Ready(messages.PROTOCOL_VERSION, thread.engine.info, self._sandbox))

    def _start(self, prepared: Prepared) -> None:
        self._preparing.discard(prepared.id)  # before the engine has it: a single request never waits for itself
        match prepared:
            case Prepared(id, _, PaddockError() as error):
                self._refuse(id, error)
            case Prepared(id, GenerateRequest() as request, PreparedPrompt() as prompt):
                assert isinstance(self._thread, GenerationThread), "only its preparer makes prompts"
                self._outbox.send(messages.Accepted(id, len(prompt.tokens), prompt.named_tokens))
                explanation = self._reports.explain(request, prompt.tokens, prompt.text)
                engine, now = self._thread.engine, time.perf_counter()
                build = scheduler_requests(id, request, prompt, engine, self._options, now, explanation)
                self._live.start(id, lambda index: self._tell_engine(Add(build(index))))
            case Prepared(id, PoolRequest() as pooling, list() as inputs):
                origin = pooling.origin
                job = Job(id, inputs, Vectors(pooling), key=origin.key, weight=origin.weight, batch=origin.batch)
                self._tell_engine(Add(job))

    def _tell_engine(self, command: Command) -> None:
        if self._thread is not None:
            self._thread.tell(command)

    def _refuse(self, id: int, error: PaddockError) -> None:
        self._live.remove(id)
        self._outbox.send(messages.Refused(id, messages.Problem.of(error)))

    def _exit(self) -> NoReturn:
        if self._thread is not None:
            self._io.send_last(self._thread.counters.last())
        exit_now(0)

    def _fail(self, error: PaddockError) -> NoReturn:
        """Report the error and exit. The gateway fails the requests that are running."""
        counted = [] if self._thread is None else [self._thread.counters.last()]
        self._io.send_last(*counted, messages.LoadFailed(messages.Problem.of(error)))
        exit_now(1)
