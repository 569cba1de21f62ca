"""HTTP client for a llama.cpp-compatible server. Its errors become errors of our own."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import httpx
import msgspec

from paddock.config import ReplicaSettings
from paddock.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelLoading,
    NotSupported,
    PaddockError,
    QueueFull,
    ReplicaFailed,
    ReplicaLost,
    ReplicaUnreachable,
    RequestTooLarge,
    ServerStopping,
    Unavailable,
)

T = TypeVar("T")

_CONNECT = 5.0
"""Connect timeout in seconds."""
_READ = 5.0
"""Read timeout in seconds for cheap requests."""
_LONGEST_REFUSAL = 65536
_LONGEST_LINE = 16 << 20
"""Bytes of one event; a token with all its logprobs takes a few thousand."""
# llama-server's error types, which distinguish errors of the same status.
_TYPES: Mapping[str, type[PaddockError]] = {
    "exceed_context_size_error": ContextLengthExceeded,
    "not_supported_error": NotSupported,
    "unavailable_error": ModelLoading,
}
_NUMBERS = ("n_prompt_tokens", "n_ctx")
_STATUSES: Mapping[int, type[PaddockError]] = {
    400: InvalidRequest,
    413: RequestTooLarge,
    422: InvalidRequest,
    429: QueueFull,
    501: NotSupported,
    503: Unavailable,
}
# Caused by the key or settings of this server: a client cannot fix them.
_CONFIGURATION = frozenset({401, 403, 404, 405})


class Upstream:
    def __init__(self, name: str, settings: ReplicaSettings, model: str, silence: float) -> None:
        """`silence` is the read timeout of a stream in seconds."""
        assert settings.url is not None, "a remote replica has a URL"
        self.url = settings.url
        self._name = name
        self._query = {"model": model}
        headers = {"accept-encoding": "identity"}
        if settings.api_key is not None:
            headers["authorization"] = f"Bearer {settings.api_key}"
        self._client = httpx.AsyncClient(
            base_url=settings.url,
            headers=headers,
            timeout=httpx.Timeout(_READ, connect=_CONNECT, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30),
            trust_env=False,
            verify=ssl.create_default_context() if settings.url.startswith("https:") else False,
        )
        self._stream_timeout = httpx.Timeout(silence, connect=_CONNECT, pool=None)

    async def health(self) -> int:
        """The HTTP status of its health check; 0: no answer."""
        try:
            return (await self._client.get("/health")).status_code
        except httpx.HTTPError:
            return 0

    async def get(self, path: str, kind: type[T]) -> T:
        """The JSON at this path, for the replica's model. Raises `PaddockError`."""
        return self._read(await self._get(path), kind)

    async def text(self, path: str) -> str:
        return (await self._get(path)).text

    async def post(self, path: str, body: Any, kind: type[T], *, slow: bool = False) -> T:
        """The JSON answer to a request; `slow` if it may load a model. Raises `PaddockError`."""
        timeout = self._stream_timeout if slow else httpx.USE_CLIENT_DEFAULT
        try:
            response = await self._client.post(path, content=_encode(body), headers=_JSON, timeout=timeout)
        except httpx.HTTPError as error:
            raise self._lost(error) from None
        self._check(response.status_code, response.content, response.headers)
        return self._read(response, kind)

    async def events(self, path: str, body: Any, headers: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """The data of each server-sent event. Closing the iterator closes the connection, which cancels the request.

        Raises `PaddockError` if the request is refused, `ReplicaLost` if the connection breaks.
        """
        try:
            async with self._client.stream(
                "POST", path, content=_encode(body), headers={**_JSON, **headers}, timeout=self._stream_timeout
            ) as response:
                if response.status_code != 200:
                    self._check(response.status_code, await _beginning(response.aiter_raw()), response.headers)
                async with aclosing(_data(response.aiter_raw())) as found:
                    async for data in found:
                        yield data
        except httpx.HTTPError as error:
            raise self._lost(error) from None
        except _TooLong:
            raise self.failed(f"sent an event of more than {_LONGEST_LINE} bytes") from None

    async def close(self) -> None:
        await self._client.aclose()

    def failed(self, reason: str) -> ReplicaFailed:
        return ReplicaFailed(self._about(reason), retry_after=1)

    def lost(self, reason: str) -> ReplicaLost:
        return ReplicaLost(self._about(reason), retry_after=1)

    def _about(self, reason: str) -> str:
        """Clients see this text, so it has no address; the log and /admin/status have it."""
        return f"the replica {self._name} {reason}"

    def refused(self, status: int, error: Any, retry_after: float | None = None) -> PaddockError:
        """Its error object as an error of our own."""
        error = error if isinstance(error, dict) else {"message": str(error)}
        message = str(error.get("message") or f"status {status}")
        param = error.get("param")
        param = param if isinstance(param, str) else None
        code = error.get("code")
        if status in _CONFIGURATION or (status >= 500 and status not in _STATUSES):
            return self.failed(f"answered {status}: {message}")
        kind = _TYPES.get(str(error.get("type"))) or _STATUSES.get(status)
        if isinstance(code, str):  # from another Paddock
            kind = type(PaddockError.from_code(code, message))
        if kind in (None, PaddockError, ServerStopping):
            return self.failed(f"ended the request: {message}")
        numbers = {name: error[name] for name in _NUMBERS if type(error.get(name)) is int}
        return kind(message, param=param, retry_after=retry_after, numbers=numbers)

    async def _get(self, path: str) -> httpx.Response:
        try:
            response = await self._client.get(path, params=self._query)
        except httpx.HTTPError as error:
            raise self._lost(error) from None
        self._check(response.status_code, response.content, response.headers)
        return response

    def _read(self, response: httpx.Response, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(response.content, type=kind, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self.failed(f"answered {response.url.path} with an unexpected body: {error}") from None

    def _check(self, status: int, content: bytes, headers: httpx.Headers) -> None:
        if status == 200:
            return
        try:
            body = msgspec.json.decode(content[:_LONGEST_REFUSAL])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            body = content[:200].decode("utf-8", "replace")
        error = body.get("error", body) if isinstance(body, dict) else body
        after = headers.get("retry-after", "")
        raise self.refused(status, error, float(after) if after.isdecimal() else None)

    def _lost(self, error: httpx.HTTPError) -> PaddockError:
        match error:
            case httpx.ConnectError() | httpx.ConnectTimeout():
                return ReplicaUnreachable(self._about("cannot be reached"), retry_after=1)
            case httpx.TimeoutException():
                return self.lost("timed out")
            case _:
                return self.lost(f"closed the connection: {str(error) or type(error).__name__}")


_encode = msgspec.json.Encoder().encode
_JSON = {"content-type": "application/json"}


class _TooLong(Exception):
    pass


async def _beginning(chunks: AsyncIterator[bytes]) -> bytes:
    """The first bytes of an error body."""
    found = b""
    async for chunk in chunks:
        found += chunk
        if len(found) >= _LONGEST_REFUSAL:
            break
    return found


async def _data(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The data of server-sent events, one line each. Comments and event names are skipped."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise _TooLong
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data != b"[DONE]":
                    yield data
