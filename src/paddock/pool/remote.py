"""A replica that is a llama.cpp-compatible server elsewhere: looked after, asked, listened to."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import PurePath
from typing import Any

import msgspec
import structlog

from paddock.config import ReplicaSettings
from paddock.errors import (
    PaddockError,
    ReplicaFailed,
    ReplicaLost,
    ReplicaUnreachable,
    ServerStopping,
    Unavailable,
)
from paddock.pool.condition import Condition
from paddock.pool.deltas import Deltas
from paddock.pool.hearing import Broken, ChatReader, CompletionReader, Told
from paddock.pool.replica import ReplicaStatus
from paddock.pool.routing import Load
from paddock.pool.saying import beyond, conversation, said
from paddock.pool.scraping import scraped
from paddock.pool.upstream import Upstream
from paddock.types import (
    Adapters,
    ChatPrompt,
    GenerateRequest,
    ModelInfo,
    SlotState,
)
from paddock.wire import Delta, Detokenize, ReadPrompt, Render, Text, TextQuestion, Tokenize, Tokens

_log = structlog.get_logger(__name__)

_INTERVAL = 1.0
"""Seconds between two looks at how it is."""
_SCRAPED_EVERY, _LEARNT_EVERY = 5, 30
"""In looks."""
_LOST = 5
"""Looks in a row without an answer after which nobody waits any longer for what is under way there."""
_MOST_UNREAD = 4096
"""Deltas that are kept for a client who does not read; then nothing is read from the server either."""


class RemoteReplica:
    """Everything here runs on the gateway's event loop."""

    def __init__(
        self, name: str, settings: ReplicaSettings, model: str, *, deterministic: bool, silence_timeout: float
    ) -> None:
        self.name = name
        self._model = settings.model or model
        self._alias = ""
        self._version = settings.engine_version
        self._deterministic = deterministic
        self.upstream = Upstream(name, settings, self._model, silence_timeout)
        self.condition = Condition()
        self.info: ModelInfo | None = None
        self.metrics: Mapping[str, float] = {}
        """What it counts itself, as it last said."""
        self.tokens = 0
        """What has been heard from it, token by token."""
        self.outcomes: Counter[str] = Counter()
        """How requests to it ended: `ok`, `left`, or the code of an error."""
        self._problem = ""
        """Why it is not known what it is."""
        self._others = 0
        self._attempts: set[RemoteAttempt] = set()
        self._unused = asyncio.Event()
        self._unused.set()
        self._ids = itertools.count(1)
        self._looks = 0
        self._looking: asyncio.Lock = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    # ── what a pool asks ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_paddock(self) -> bool:
        return self.info is not None and self.info.engine.startswith("paddock ")

    @property
    def load(self) -> Load:
        return Load(len(self._attempts) + self._others, 0, self.info.n_slots if self.info is not None else 0)

    @property
    def life(self) -> int:
        return self.condition.life

    @property
    def usable(self) -> bool:
        """Another Paddock keeps requests while it loads its model; a llama-server refuses them."""
        if not self._looks:
            return True
        health = self.condition.health
        there = self.info is not None and (health == "ready" or (health == "unready" and self.is_paddock))
        return there and not self.condition.left_alone(time.monotonic())

    @property
    def awake(self) -> bool:
        return self.condition.health == "ready"

    def beyond(self, request: GenerateRequest) -> PaddockError | None:
        if self.info is None:
            return None
        return beyond(
            request,
            paddock=self.is_paddock,
            slots=self.info.n_slots,
            deterministic=self._deterministic or request.deterministic,
        )

    async def enter(self, *, exact: bool) -> RemoteReplica:
        if self.info is None:
            await self.look()
        if exact and self.is_paddock and self.info is not None and not self.info.fingerprint:
            # It is known once the model is loaded there, which the shortest of answers sees to.
            shortest = {"model": self._model, "prompt": "a", "n_predict": 1}
            await self.upstream.post("/completion", shortest, dict[str, Any], patient=True)
            await self._learn()
        if not self.usable:
            raise Unavailable(
                self._problem or f"the replica {self.name} is {self.condition.health}",
                retry_after=1,
            )
        return self

    def wake(self) -> None:
        """It looks after itself."""

    async def slots(self) -> list[SlotState]:
        return [slot.state() for slot in await self.upstream.get("/slots", list[_Slot])]

    async def leave(self) -> None:
        await self._unused.wait()

    async def stop(self, grace: float | None) -> None:
        try:
            async with asyncio.timeout(grace):
                await self.leave()
        except TimeoutError:
            self.fail_all(ServerStopping("the server is stopping"))

    def status(self) -> ReplicaStatus:
        failures = self.condition.failures
        return ReplicaStatus(
            self.name,
            "server",
            self.condition.health,
            *self.engine,
            self.load,
            url=self.upstream.url,
            fingerprint=self.info.fingerprint if self.info is not None else "",
            failures=failures.count,
            failure=failures.reason or self._problem,
            retry_after=failures.pause(time.monotonic()),
            tokens=self.tokens,
            outcomes=self.outcomes,
            scraped=self.metrics,
        )

    @property
    def engine(self) -> tuple[str, str]:
        """What it is, and of which version."""
        build = self.info.engine if self.info is not None else ""
        if self.is_paddock:
            return "paddock", self._version or build.removeprefix("paddock ")
        return "llama.cpp", self._version or build or "unknown"

    def start(self) -> None:
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self.fail_all(ServerStopping("the server is stopping"))
        await self.upstream.close()

    # ── looking after it ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_INTERVAL)

    async def look(self) -> None:
        """See how it is, and now and then what it is and what it has counted."""
        async with self._looking:
            before, life = self.condition.health, self.condition.life
            self.condition.heard(await self.upstream.health())
            health = self.condition.health
            if health != before and self._looks:
                write = _log.warning if health == "down" else _log.info
                write("replica", replica=self.name, url=self.upstream.url, health=health)
            if health == "down":
                self.info = None  # it may come back as another one
            if self.condition.missed >= _LOST:
                self.fail_all(self.upstream.lost("does not answer any more"))
            due, self._looks = self._looks, self._looks + 1
            if health != "ready":
                return
            known = self.info is not None and bool(self.info.fingerprint) and life == self.condition.life
            try:
                if not known or before != "ready" or due % _LEARNT_EVERY == 0:
                    await self._learn()
                if due % _SCRAPED_EVERY == 0:
                    await self._scrape()
                self._problem = ""
            except PaddockError as error:
                if error.message != self._problem:
                    _log.warning("replica does not say what it is", replica=self.name, error=error.message)
                self._problem = error.message

    async def _learn(self) -> None:
        props = await self.upstream.get("/props", _Props)
        self._alias = props.model_alias  # what it counts under, whatever it also answers to
        meta: dict[str, Any] = {}
        if not props.build_info.startswith("paddock "):
            models = (await self.upstream.get("/v1/models", _Models)).data
            meta = (models[0].meta if models else None) or {}
        self.info = ModelInfo(
            description="",
            n_ctx=props.default_generation_settings.n_ctx,
            n_ctx_train=meta.get("n_ctx_train", 0),
            n_vocab=meta.get("n_vocab", 0),
            n_params=meta.get("n_params", 0),
            size_bytes=meta.get("size", 0),
            n_slots=props.total_slots,
            fingerprint=props.fingerprint if props.fingerprint is not None else _fingerprint(props, meta),
            engine=props.build_info,
            chat_template=props.chat_template,
            bos=props.bos_token,
            eos=props.eos_token,
        )

    async def _scrape(self) -> None:
        """Where it counts anything: a llama-server does so with --metrics only."""
        try:
            page = await self.upstream.text("/metrics")
        except PaddockError:
            return
        self.metrics = scraped(page, self._alias or self._model)
        there = self.metrics.get("llamacpp:requests_processing", 0) + self.metrics.get("llamacpp:requests_deferred", 0)
        self._others = max(0, int(there) - len(self._attempts))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def generate(self, request: Callable[[int], GenerateRequest]) -> RemoteAttempt:
        attempt = RemoteAttempt(self, request(next(self._ids)))
        self._attempts.add(attempt)
        self._unused.clear()
        return attempt

    def said(self, request: GenerateRequest) -> tuple[str, dict[str, Any]]:
        exact = self._deterministic or request.deterministic
        n_ctx = self.info.n_ctx if self.info is not None else 0
        return said(request, self._model, paddock=self.is_paddock, n_ctx=n_ctx, deterministic=exact)

    def ended(self, attempt: RemoteAttempt, outcome: str, error: PaddockError | None = None) -> None:
        self._attempts.discard(attempt)
        self.outcomes[outcome] += 1
        if not self._attempts:
            self._unused.set()
        if outcome == "ok":
            self.condition.succeeded()
        elif isinstance(error, ReplicaFailed | ReplicaLost):
            self.condition.failed(error.message, time.monotonic())
            if isinstance(error, ReplicaUnreachable):
                self.condition.gone()

    def fail_all(self, error: PaddockError) -> None:
        for attempt in list(self._attempts):
            attempt.fail(error)

    async def ask(self, question: Callable[[int], TextQuestion]) -> Tokens | Text:
        asked = question(0)
        match asked:
            case Tokenize():
                return await self._tokenize(
                    asked.parts[0] if len(asked.parts) == 1 else asked.parts,
                    add_special=asked.add_special,
                    parse_special=asked.parse_special,
                    with_pieces=asked.with_pieces,
                )
            case Detokenize(_, tokens):
                answer = await self.upstream.post("/detokenize", {"model": self._model, "tokens": tokens}, _Content)
                return Text(0, answer.content)
            case Render(_, prompt):
                return Text(0, await self._render(prompt))
            case ReadPrompt(_, prompt):
                text = await self._render(prompt)
                return await self._tokenize(text, add_special=True, parse_special=True, with_pieces=False)

    async def _render(self, prompt: ChatPrompt) -> str:
        body = {"model": self._model, **conversation(prompt)}
        return (await self.upstream.post("/apply-template", body, _Rendered)).prompt

    async def _tokenize(self, content: Any, **options: bool) -> Tokens:
        body = {"model": self._model, "content": content, **options}
        if not options["with_pieces"]:
            return Tokens(0, (await self.upstream.post("/tokenize", body, _Tokens)).tokens)
        named = (await self.upstream.post("/tokenize", body, _Pieces)).tokens
        return Tokens(0, [token.id for token in named], [token.name for token in named])


class RemoteAttempt(Deltas):
    """A request to a server elsewhere. A task of its own listens to it; closing it closes the connection, by which the
    server learns that nobody wants the rest.
    """

    def __init__(self, replica: RemoteReplica, request: GenerateRequest) -> None:
        super().__init__(request.n, _MOST_UNREAD)
        self._replica = replica
        self._request = request
        self._unheard = request.n
        self.adapters: Adapters = ()
        self.prompt: list[tuple[int, bytes]] = []
        self._reader = _reader(request)
        self._outcome = "left"
        self._failure: PaddockError | None = None
        self._listening = asyncio.get_running_loop().create_task(self._listen())
        # Also of a task that was called off before it began.
        self._listening.add_done_callback(lambda _: replica.ended(self, self._outcome, self._failure))

    @property
    def prompt_tokens(self) -> int:
        return self._reader.prompt_tokens

    @property
    def fingerprint(self) -> str:
        return self._replica.info.fingerprint if self._replica.info is not None else ""

    @property
    def n_ctx(self) -> int:
        return self._replica.info.n_ctx if self._replica.info is not None else 0

    def close(self) -> None:
        super().close()
        self._listening.cancel()

    def fail(self, error: PaddockError) -> None:
        """End it with this error, whatever the server is doing."""
        self._listening.cancel()
        self._end(error)

    async def _listen(self) -> None:
        try:
            await self._hear()
            self._outcome = "ok"
        except PaddockError as error:
            self._outcome, self._failure = error.code, error
            self._end(self._named(error))
        except Exception:
            _log.exception("unhandled error", replica=self._replica.name, request_id=self._request.request_id)
            self._outcome = PaddockError.code
            self._end(PaddockError("something went wrong inside the server; its log has more"))

    async def _hear(self) -> None:
        upstream, request = self._replica.upstream, self._request
        path, body = self._replica.said(request)
        headers = {"x-request-id": request.request_id, "x-job-id": request.job_id}
        stream = upstream.events(path, body, {name: value for name, value in headers.items() if value})
        async with aclosing(stream) as events:
            async for data in events:
                try:
                    deltas = self._reader.feed(data)
                except Told as told:
                    raise upstream.refused(_status(told.error), told.error) from None
                except Broken as broken:
                    raise upstream.failed(f"said what is not understood: {broken}") from None
                if not self._accepted.done():
                    self._replica.condition.answered()
                    self._accept()
                for delta in deltas:
                    await self._put(delta)
                if not self._unheard:
                    return
        raise upstream.lost("broke off in the middle of an answer")

    async def _put(self, delta: Delta) -> None:
        if delta.progress is None:
            self._replica.tokens += 1
        if delta.finish is not None:
            self._unheard -= 1
            self.prompt = self._prompt()
        await self._events.put(delta)

    def _prompt(self) -> list[tuple[int, bytes]]:
        """As it was read, as far as a server says so: as one name, since it does not tell the tokens apart."""
        if not self._request.echo:
            return []
        text = self._reader.prompt if isinstance(self._reader, CompletionReader) else ""
        return [(-1, text.encode("utf-8", "replace"))]

    def _named(self, error: PaddockError) -> PaddockError:
        """A schema may have been sent under another name than the client's."""
        constraint = self._request.constraint
        if constraint is not None and error.param in ("json_schema", "grammar", "regex"):
            error.param = constraint.param
        return error


def _reader(request: GenerateRequest) -> ChatReader | CompletionReader:
    probs, progress, timings = request.sampling.n_probs, request.return_progress, request.timings_per_token
    if isinstance(request.prompt, ChatPrompt):
        return ChatReader(probs=probs, progress=progress, timings=timings)
    return CompletionReader(probs=probs, progress=progress, timings=timings, tokens=request.return_tokens)


def _status(error: Any) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else 0


# ── what it says of itself ───────────────────────────────────────────────────────────────────────────────────────────


class _Defaults(msgspec.Struct):
    n_ctx: int = 0


class _Props(msgspec.Struct):
    default_generation_settings: _Defaults
    total_slots: int
    build_info: str = ""
    model_alias: str = ""
    model_path: str = ""
    model_ftype: str = ""
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    fingerprint: str | None = None
    """A Paddock's; empty while the model is not loaded."""


class _Model(msgspec.Struct):
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Content(msgspec.Struct):
    content: str


class _Rendered(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Piece(msgspec.Struct):
    id: int
    piece: str | list[int]

    @property
    def name(self) -> bytes:
        return self.piece.encode() if isinstance(self.piece, str) else bytes(self.piece)


class _Pieces(msgspec.Struct):
    tokens: list[_Piece]


class _Slot(msgspec.Struct):
    id: int
    n_ctx: int = 0
    is_processing: bool = False
    id_task: int = -1
    n_prompt_tokens: int = 0

    def state(self) -> SlotState:
        return SlotState(
            self.id,
            self.n_ctx,
            is_processing=self.is_processing,
            id_task=self.id_task,
            n_prompt_tokens=self.n_prompt_tokens,
        )


def _fingerprint(props: _Props, meta: Mapping[str, Any]) -> str:
    """Of a llama-server: its build, the model's file as far as it tells of it, and the flags that show."""
    parts = [
        props.build_info,
        PurePath(props.model_path).name,
        props.model_ftype,
        sorted((name, value) for name, value in meta.items() if isinstance(value, int)),
        props.total_slots,
        props.default_generation_settings.n_ctx,
        props.chat_template,
    ]
    return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
