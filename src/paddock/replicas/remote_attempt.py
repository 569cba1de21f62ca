"""One request running on a remote llama.cpp-compatible server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Protocol

import structlog

from paddock.errors import PaddockError
from paddock.replicas.condition import Condition
from paddock.replicas.decode import InvalidEvent, UpstreamError, reader_of
from paddock.replicas.deltas import Deltas
from paddock.replicas.upstream import Upstream
from paddock.types import Adapters, GenerateRequest, ModelInfo
from paddock.wire.messages import Delta

_log = structlog.get_logger(__name__)

_MOST_UNREAD = 4096
"""Deltas buffered for a slow client; then nothing more is read from the server."""


class RemoteServer(Protocol):
    name: str
    upstream: Upstream
    condition: Condition
    info: ModelInfo | None
    tokens: int

    def encode(self, request: GenerateRequest) -> tuple[str, dict[str, Any]]:
        """The route and the body of the request."""

    def ended(self, attempt: RemoteAttempt, outcome: str, error: PaddockError | None = None) -> None:
        """The attempt has ended."""


class RemoteAttempt(Deltas):
    """A task reads the response. Closing the attempt closes the connection, which cancels the request on the server."""

    def __init__(self, replica: RemoteServer, request: GenerateRequest) -> None:
        super().__init__(request.n, _MOST_UNREAD)
        self._replica = replica
        self._request = request
        self._unfinished = request.n
        self.adapters: Adapters = ()
        self.prompt: list[tuple[int, bytes]] = []
        self.fingerprint = replica.info.fingerprint if replica.info is not None else ""
        self.n_ctx = replica.info.n_ctx if replica.info is not None else 0
        self.worker_info: ModelInfo | None = None
        self._reader = reader_of(request)
        self._outcome = "left"
        self._failure: PaddockError | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        # Also for a task that is cancelled before it starts.
        self._task.add_done_callback(lambda _: replica.ended(self, self._outcome, self._failure))

    @property
    def prompt_tokens(self) -> int:
        return self._reader.prompt_tokens

    def close(self) -> None:
        super().close()
        self._task.cancel()

    def fail(self, error: PaddockError) -> None:
        """End it with this error now."""
        self._task.cancel()
        self._end(error)

    async def _run(self) -> None:
        try:
            await self._read_events()
        except PaddockError as error:
            self._outcome, self._failure = error.code, error
            self._end(self._with_client_param(error))
        except Exception:
            _log.exception("unhandled error", replica=self._replica.name, request_id=self._request.request_id)
            self._outcome = PaddockError.code
            self._end(PaddockError("internal error; see the server's log"))

    async def _read_events(self) -> None:
        upstream, request = self._replica.upstream, self._request
        path, body = self._replica.encode(request)
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
                    self._replica.condition.checked(200)
                    self._accept()
                for delta in deltas:
                    await self._put(delta)
                if not self._unfinished:
                    return
        raise upstream.lost("closed the connection before the end of the response")

    async def _put(self, delta: Delta) -> None:
        if delta.progress is None:
            self._replica.tokens += 1
        if delta.finish is not None:
            self._unfinished -= 1
            self.prompt = self._prompt()
            if not self._unfinished:
                self._outcome = "ok"  # before the put: the reader closes the attempt after the last delta
        await self._events.put(delta)

    def _prompt(self) -> list[tuple[int, bytes]]:
        """The prompt as the server reports it, as one text: it does not report single tokens."""
        if not self._request.echo:
            return []
        return [(-1, self._reader.prompt.encode("utf-8", "replace"))]

    def _with_client_param(self, error: PaddockError) -> PaddockError:
        """Name the client's field: the schema may have been sent under another name."""
        constraint = self._request.constraint
        if constraint is not None and error.param in ("json_schema", "grammar", "regex"):
            error.param = constraint.param
        return error


def _status(error: Any) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else 0
