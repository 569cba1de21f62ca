"""A gateway behind Ray's proxies enforces the same limits as one that owns its connections."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ServerSettings
from paddock.gateway.http.connection_slots import REQUEST_ENTRY, ConnectionLimits
from paddock.gateway.http.request_limits import RequestLimits, too_large

SETTINGS = ServerSettings(max_connections=4, max_watchers_per_key=1, max_header_bytes=1024)
LIMITS = ConnectionLimits.of(SETTINGS)


def _scope(path: str = "/", headers: int = 0, size: int = 0) -> dict[str, Any]:
    return {
        "type": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"x-%d" % number, b"v" * size) for number in range(headers)],
    }


@given(st.integers(0, 9000), st.integers(0, 200), st.integers(0, 1200))
def test_the_head_of_a_request_is_limited(length: int, headers: int, size: int) -> None:
    scope = _scope("/" + "x" * length, headers, size)
    problem = too_large(scope, SETTINGS)
    total = sum(len(name) + len(value) for name, value in scope["headers"])
    if length + 1 > SETTINGS.max_url_bytes:
        assert problem is not None and problem.status == 414
    elif headers > SETTINGS.max_header_count or total > SETTINGS.max_header_bytes:
        assert problem is not None and problem.status == 431
    else:
        assert problem is None


async def _status(app: RequestLimits, scope: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_a_head_that_is_too_large_does_not_reach_the_application() -> None:
    async def never(*_: object) -> None:
        raise AssertionError

    status, body = asyncio.run(_status(RequestLimits(never, LIMITS), _scope(headers=101)))
    assert (status, body["error"]["code"]) == (431, "headers_too_large")
    assert body["request_id"].startswith("req_")


def test_requests_are_counted_until_they_end() -> None:
    async def run() -> None:
        ending = asyncio.Event()
        refused: list[str] = []

        async def work(scope: Any, *_: object) -> None:
            try:
                scope[REQUEST_ENTRY].take(scope["use"], scope["owner"], has_key=True)
            except Exception as error:
                refused.append(f"{scope['use']} of {scope['owner']}: {type(error).__name__}")
                return
            await ending.wait()

        app = RequestLimits(work, LIMITS)
        asked: list[tuple[str, str]] = [("watch", "a"), ("watch", "a"), ("request", "a"), ("request", "a")]
        asked += [("request", "b"), ("request", "c"), ("admin", "boss"), ("admin", "boss")]
        tasks = [
            asyncio.ensure_future(app(_scope() | {"use": use, "owner": owner}, _never, _never)) for use, owner in asked
        ]
        await asyncio.sleep(0)
        assert refused == [
            "watch of a: RateLimitExceeded",
            "request of a: RateLimitExceeded",
            "request of c: TooManyConnections",
            "admin of boss: TooManyConnections",
        ]
        ending.set()
        await asyncio.gather(*tasks)
        refused.clear()
        await app(_scope() | {"use": "request", "owner": "c"}, _never, _never)
        assert not refused

    asyncio.run(run())


async def _never(*_: object) -> Any:
    raise AssertionError
