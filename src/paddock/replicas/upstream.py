"""A llama.cpp-compatible server over HTTP: its routes, and its refusals as errors of our own."""

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
"""Seconds until a connection must have come about."""
_LOOK = 5.0
"""And a question been answered that costs nothing."""
_LONGEST_REFUSAL = 65536
_LONGEST_LINE = 16 << 20
"""Bytes of one event; a token with all its alternatives takes a few thousand."""
# llama-server's words, by which it tells errors of the same status apart.
_TYPES: Mapping[str, type[PaddockError]] = {
    "exceed_context_size_error": ContextLengthExceeded,
    "not_supported_error": NotSupported,
    "unavailable_error": ModelLoading,
}
_STATUSES: Mapping[int, type[PaddockError]] = {
    400: InvalidRequest,
    413: RequestTooLarge,
    422: InvalidRequest,
    429: QueueFull,
    501: NotSupported,
    503: Unavailable,
}
# What our own refusals say of this server's key or settings is nothing that a client could mend.
_OURS = frozenset({401, 403, 404, 405})


class Upstream:
    def __init__(self, name: str, said: ReplicaSettings, model: str, silence: float) -> None:
        """`silence` is how many seconds an answer may stand still."""
        assert said.url is not None, "it is elsewhere"
        self.url = said.url
        self._name = name
        self._query = {"model": model}
        headers = {"accept-encoding": "identity"}
        if said.api_key is not None:
            headers["authorization"] = f"Bearer {said.api_key}"
        self._client = httpx.AsyncClient(
            base_url=said.url,
            headers=headers,
            timeout=httpx.Timeout(_LOOK, connect=_CONNECT, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30),
            trust_env=False,
            verify=ssl.create_default_context() if said.url.startswith("https:") else False,
        )
        self._patience = httpx.Timeout(silence, connect=_CONNECT, pool=None)

    async def health(self) -> int:
        """The status with which it says how it is; 0 where it does not answer."""
        try:
            return (await self._client.get("/health")).status_code
        except httpx.HTTPError:
            return 0

    async def get(self, path: str, kind: type[T]) -> T:
        """The JSON there, of the model that is meant. Raises `PaddockError`."""
        return self._read(await self._get(path), kind)

    async def text(self, path: str) -> str:
        return (await self._get(path)).text

    async def post(self, path: str, body: Any, kind: type[T], *, patient: bool = False) -> T:
        """The answer to a question. Raises what it was refused with."""
        timeout = self._patience if patient else httpx.USE_CLIENT_DEFAULT
        try:
            response = await self._client.post(path, content=_encode(body), headers=_JSON, timeout=timeout)
        except httpx.HTTPError as error:
            raise self._lost(error) from None
        self._check(response.status_code, response.content, response.headers)
        return self._read(response, kind)

    async def events(self, path: str, body: Any, headers: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """The data of each event of the answer, as it comes. Leaving it closes the connection, which ends the answer.

        Raises what it was refused with, or `ReplicaLost` where the connection breaks.
        """
        try:
            async with self._client.stream(
                "POST", path, content=_encode(body), headers={**_JSON, **headers}, timeout=self._patience
            ) as response:
                if response.status_code != 200:
                    self._check(response.status_code, await _beginning(response.aiter_raw()), response.headers)
                async with aclosing(_data(response.aiter_raw())) as found:
                    async for data in found:
                        yield data
        except httpx.HTTPError as error:
            raise self._lost(error) from None
        except _TooLong:
            raise self.failed("said more in one line than anybody would") from None

    async def close(self) -> None:
        await self._client.aclose()

    def failed(self, reason: str) -> ReplicaFailed:
        return ReplicaFailed(self._about(reason), retry_after=1)

    def lost(self, reason: str) -> ReplicaLost:
        return ReplicaLost(self._about(reason), retry_after=1)

    def _about(self, reason: str) -> str:
        """Told to clients, who have no business with its address; the log and /admin/status have that."""
        return f"the replica {self._name} {reason}"

    def refused(self, status: int, error: Any, retry_after: float | None = None) -> PaddockError:
        """What its error object says, as an error of ours."""
        error = error if isinstance(error, dict) else {"message": str(error)}
        message = str(error.get("message") or f"status {status}")
        param = error.get("param")
        param = param if isinstance(param, str) else None
        code = error.get("code")
        if status in _OURS or (status >= 500 and status not in _STATUSES):
            return self.failed(f"answered {status}: {message}")
        kind = _TYPES.get(str(error.get("type"))) or _STATUSES.get(status)
        if isinstance(code, str):  # another Paddock's
            kind = type(PaddockError.from_code(code, message))
        if kind in (None, PaddockError, ServerStopping):
            return self.failed(f"ended the answer: {message}")
        return kind(message, param=param, retry_after=retry_after)

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
            raise self.failed(f"answered {response.url.path} with what is not understood: {error}") from None

    def _check(self, status: int, content: bytes, headers: httpx.Headers) -> None:
        if status == 200:
            return
        try:
            said = msgspec.json.decode(content[:_LONGEST_REFUSAL])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            said = content[:200].decode("utf-8", "replace")
        error = said.get("error", said) if isinstance(said, dict) else said
        after = headers.get("retry-after", "")
        raise self.refused(status, error, float(after) if after.isdecimal() else None)

    def _lost(self, error: httpx.HTTPError) -> PaddockError:
        match error:
            case httpx.ConnectError() | httpx.ConnectTimeout():
                return ReplicaUnreachable(self._about("cannot be reached"), retry_after=1)
            case httpx.TimeoutException():
                return self.lost("fell silent")
            case _:
                return self.lost(f"broke off: {str(error) or type(error).__name__}")


_encode = msgspec.json.Encoder().encode
_JSON = {"content-type": "application/json"}


class _TooLong(Exception):
    pass


async def _beginning(chunks: AsyncIterator[bytes]) -> bytes:
    """As much of a refusal as is looked at."""
    found = b""
    async for chunk in chunks:
        found += chunk
        if len(found) >= _LONGEST_REFUSAL:
            break
    return found


async def _data(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The data of server-sent events, each of which has one line of it; nothing of comments and names."""
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
