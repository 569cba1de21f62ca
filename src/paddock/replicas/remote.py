"""A replica on a remote llama.cpp-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping
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
from paddock.replicas.condition import Condition
from paddock.replicas.encode import encode_chat, encode_request, unsupported
from paddock.replicas.remote_attempt import RemoteAttempt
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.routing import Load
from paddock.replicas.scraping import PROCESSING, busy, scraped
from paddock.replicas.shapes import Content, Models, Props, Rendered, Slot, TokenIds, TokenPieces, engine_of
from paddock.replicas.upstream import Upstream
from paddock.types import (
    ChatPrompt,
    CountTokens,
    Detokenize,
    GenerateRequest,
    ModelInfo,
    Render,
    SlotState,
    TextQuestion,
    Tokenize,
)
from paddock.wire.messages import Text, Tokens

_log = structlog.get_logger(__name__)

_INTERVAL = 1.0
"""Seconds between two health checks."""
_SCRAPE_EVERY, _PROPS_EVERY = 5, 30
"""In health checks."""
_MOST_MISSED = 5
"""Unanswered health checks in a row after which its running requests fail."""


class RemoteReplica:
    """Everything here runs on the gateway's event loop."""

    def __init__(
        self, name: str, settings: ReplicaSettings, model: str, *, deterministic: bool, silence_timeout: float
    ) -> None:
        self.name = name
        self._model = settings.model or model
        self._alias = ""
        self._marker = "<__media__>"
        self._version = settings.engine_version
        self._engine = ("llama.cpp", "unknown")
        self._deterministic = deterministic
        self.upstream = Upstream(name, settings, self._model, silence_timeout)
        self.condition = Condition()
        self.info: ModelInfo | None = None
        self.metrics: Mapping[str, float] = {}
        """Its own metrics, as last scraped."""
        self.tokens = 0
        """Received tokens."""
        self.outcomes: Counter[str] = Counter()
        """How requests to it ended: `ok`, `left` or an error code."""
        self._problem = ""
        """Why its properties are unknown."""
        self._foreign_requests = 0
        self._attempts: set[RemoteAttempt] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._check_count = 0
        self._check_lock: asyncio.Lock = asyncio.Lock()
        self._checks: asyncio.Task[None] | None = None

    # ── the replica interface ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_paddock(self) -> bool:
        return self.info is not None and self.info.engine.startswith("paddock ")

    @property
    def load(self) -> Load:
        return Load(len(self._attempts) + self._foreign_requests, 0, self.info.n_slots if self.info is not None else 0)

    @property
    def epoch(self) -> int:
        return self.condition.epoch

    @property
    def usable(self) -> bool:
        """Paddock queues requests while its model loads; llama-server refuses them."""
        if not self._check_count:
            return True
        health = self.condition.health
        is_up = self.info is not None and (health == "ready" or (health == "unready" and self.is_paddock))
        return is_up and not self.condition.failures.pause(time.monotonic())

    @property
    def is_doubtful(self) -> bool:
        """It was down, or is up and its properties are being read. Not after failed requests: they say more than health
        checks.
        """
        health = self.condition.health
        is_known = health == "unready" or (health == "ready" and self.info is not None)
        return not is_known and not self.condition.failures.pause(time.monotonic())

    @property
    def is_loaded(self) -> bool:
        return self.condition.health == "ready"

    def unsupported(self, request: GenerateRequest) -> PaddockError | None:
        if self.info is None:
            return None
        return unsupported(
            request,
            paddock=self.is_paddock,
            slots=self.info.n_slots,
            deterministic=self._deterministic or request.deterministic,
            template=self.info.chat_template,
        )

    async def acquire(self, *, exact: bool) -> RemoteReplica:
        if self._is_unknown:
            await self._check_again()
        if exact and self.is_paddock and self.info is not None and not self.info.fingerprint:
            # The fingerprint is known once the model is loaded, so send a minimal request.
            minimal = {"model": self._model, "prompt": "a", "n_predict": 1}
            await self.upstream.post("/completion", minimal, dict[str, Any], slow=True)
            await self._read_props()
        if not self.usable:
            raise Unavailable(
                self._problem or f"the replica {self.name} is {self.condition.health}",
                retry_after=1,
            )
        return self

    def start_load(self) -> None:
        """A remote server loads its model itself."""

    async def slots(self) -> list[SlotState]:
        return [slot.state() for slot in await self.upstream.get("/slots", list[Slot])]

    async def drain(self) -> None:
        await self._idle.wait()

    async def stop(self, grace: float | None) -> None:
        try:
            async with asyncio.timeout(grace):
                await self.drain()
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
        """Name and version. These are metric labels, so they do not change while the server is down or its model is
        unloaded.
        """
        name, version = self._engine
        return name, self._version or version

    def start(self) -> None:
        if self._checks is None:
            self._checks = asyncio.get_running_loop().create_task(self._check_loop())

    async def close(self) -> None:
        if self._checks is not None:
            self._checks.cancel()
            await asyncio.gather(self._checks, return_exceptions=True)
        self.fail_all(ServerStopping("the server is stopping"))
        await self.upstream.close()

    # ── health checks ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check_loop(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(_INTERVAL)

    async def check(self) -> None:
        """Check its health; from time to time also read its properties and metrics."""
        async with self._check_lock:
            await self._check(counts_missed=True)

    async def _check_again(self) -> None:
        """Check its health for a request. Requests that wait for a check share it, and what it misses says nothing
        about how long the server has been silent.
        """
        checks = self._check_count
        async with self._check_lock:
            if checks == self._check_count and self._is_unknown:
                await self._check(counts_missed=not checks)

    @property
    def _is_unknown(self) -> bool:
        return self.info is None or self.condition.health == "down"

    async def _check(self, *, counts_missed: bool) -> None:
        before, epoch = self.condition.health, self.condition.epoch
        status = await self.upstream.health()
        if status or counts_missed:
            self.condition.checked(status)
        health = self.condition.health
        if health != before and self._check_count:
            write = _log.warning if health == "down" else _log.info
            write("replica", replica=self.name, url=self.upstream.url, health=health)
        if health == "down":
            self.info = None  # it may restart with another model
        if self.condition.missed >= _MOST_MISSED:
            self.fail_all(self.upstream.lost("stopped answering health checks"))
        due, self._check_count = self._check_count, self._check_count + 1
        if health != "ready":
            return
        known = self.info is not None and bool(self.info.fingerprint) and epoch == self.condition.epoch
        try:
            if not known or before != "ready" or due % _PROPS_EVERY == 0:
                await self._read_props()
            if due % _SCRAPE_EVERY == 0:
                await self._scrape()
            self._problem = ""
        except PaddockError as error:
            if error.message != self._problem:
                _log.warning("cannot read the properties of a replica", replica=self.name, error=error.message)
            self._problem = error.message

    async def _read_props(self) -> None:
        props = await self.upstream.get("/props", Props)
        self._engine = engine_of(props.build_info)
        self._alias = props.model_alias  # its label in metrics
        self._marker = props.media_marker
        meta: dict[str, Any] = {}
        if not props.build_info.startswith("paddock "):
            models = (await self.upstream.get("/v1/models", Models)).data
            meta = (models[0].meta if models else None) or {}
        self.info = props.info(meta)

    async def _scrape(self) -> None:
        """Read its metrics and the requests of other clients. llama-server has metrics only with --metrics, and slots
        unless started with --no-slots.
        """
        counted: Mapping[str, float] = {}
        before = len(self._attempts)
        with contextlib.suppress(PaddockError):
            counted = self.metrics = scraped(await self.upstream.text("/metrics"), self._alias or self._model)
        processing: list[bool] | None = None
        if PROCESSING not in counted:
            with contextlib.suppress(PaddockError):
                processing = [slot.is_processing for slot in await self.slots()]
        # The server may still count a request that ended during the scrape.
        self._foreign_requests = max(0, busy(counted, processing) - max(before, len(self._attempts)))

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def generate(self, request: GenerateRequest) -> RemoteAttempt:
        attempt = RemoteAttempt(self, request)
        self._attempts.add(attempt)
        self._idle.clear()
        return attempt

    def encode(self, request: GenerateRequest) -> tuple[str, dict[str, Any]]:
        exact = self._deterministic or request.deterministic
        n_ctx = self.info.n_ctx if self.info is not None else 0
        return encode_request(
            request,
            self._model,
            paddock=self.is_paddock,
            n_ctx=n_ctx,
            deterministic=exact,
            marker=self._marker,
        )

    def ended(self, attempt: RemoteAttempt, outcome: str, error: PaddockError | None = None) -> None:
        self._attempts.discard(attempt)
        self.outcomes[outcome] += 1
        if not self._attempts:
            self._idle.set()
        if outcome == "ok":
            self.condition.failures.succeeded()
        elif isinstance(error, ReplicaFailed | ReplicaLost):
            self.condition.failures.failed(error.message, time.monotonic())
            if isinstance(error, ReplicaUnreachable):
                self.condition.unreachable()

    def fail_all(self, error: PaddockError) -> None:
        for attempt in list(self._attempts):
            attempt.fail(error)

    async def ask(self, question: TextQuestion) -> Tokens | Text:
        match question:
            case Tokenize():
                return await self._tokenize(
                    question.parts[0] if len(question.parts) == 1 else question.parts,
                    add_special=question.add_special,
                    parse_special=question.parse_special,
                    with_pieces=question.with_pieces,
                )
            case Detokenize(tokens):
                answer = await self.upstream.post("/detokenize", {"model": self._model, "tokens": tokens}, Content)
                return Text(0, answer.content)
            case Render(prompt):
                return Text(0, await self._render(prompt))
            case CountTokens(prompt):
                text = await self._render(prompt)
                found = await self._tokenize(text, add_special=True, parse_special=True, with_pieces=False)
                return Tokens(0, found.count, n_ctx=self.info.n_ctx if self.info is not None else 0)

    async def _render(self, prompt: ChatPrompt) -> str:
        body = {"model": self._model, **encode_chat(prompt, paddock=self.is_paddock)}
        return (await self.upstream.post("/apply-template", body, Rendered)).prompt

    async def _tokenize(self, content: Any, **options: bool) -> Tokens:
        body = {"model": self._model, "content": content, **options}
        shape: type[TokenPieces | TokenIds] = TokenPieces if options["with_pieces"] else TokenIds
        tokens = (await self.upstream.post("/tokenize", body, shape)).tokens
        return Tokens(0, len(tokens), msgspec.json.encode(tokens))
