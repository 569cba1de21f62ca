"""One request under way at a llama.cpp-compatible server elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Protocol

import structlog

from paddock.errors import PaddockError
from paddock.replicas.condition import Condition
from paddock.replicas.decode import ChatReader, CompletionReader, InvalidEvent, UpstreamError
from paddock.replicas.deltas import Deltas
from paddock.replicas.upstream import Upstream
from paddock.types import Adapters, ChatPrompt, GenerateRequest, ModelInfo
from paddock.wire import Delta

_log = structlog.get_logger(__name__)

_MOST_UNREAD = 4096
"""Deltas that are kept for a client who does not read; then nothing is read from the server either."""


class Server(Protocol):
    """Whom it was sent to."""

    name: str
    upstream: Upstream
    condition: Condition
    info: ModelInfo | None
    tokens: int

    def said(self, request: GenerateRequest) -> tuple[str, dict[str, Any]]:
        """The route and the body for it."""

    def ended(self, attempt: RemoteAttempt, outcome: str, error: PaddockError | None = None) -> None:
        """Nothing more is heard of it."""


class RemoteAttempt(Deltas):
    """A request to a server elsewhere. A task of its own listens to it; closing it closes the connection, by which the
    server learns that nobody wants the rest.
    """

    def __init__(self, replica: Server, request: GenerateRequest) -> None:
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
                except UpstreamError as reported:
                    raise upstream.refused(_status(reported.error), reported.error) from None
                except InvalidEvent as invalid:
                    raise upstream.failed(f"sent an invalid event: {invalid}") from None
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
            if not self._unheard:
                self._outcome = "ok"  # before the reader has it: having read the last delta it closes at once
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
