"""The memory for request bodies is limited and shared, and a body that stalls is refused."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import PaddockError
from paddock.gateway.http.body_budget import SMALL, BodyBudget, HeldBody, Pace
from tests.server import Server, chat_body, wait_for
from tests.sockets import Wire, post

_CHAT = "/v1/chat/completions"
_MIB = 1 << 20


@given(
    total=st.integers(1, 8 * SMALL),
    steps=st.lists(st.tuples(st.integers(0, 7), st.sampled_from("abc"), st.integers(0, 2 * SMALL)), max_size=60),
)
def test_the_budget_is_never_exceeded(total: int, steps: list[tuple[int, str, int]]) -> None:
    budget = BodyBudget(total)
    bodies: dict[int, HeldBody] = {}
    for number, owner, count in steps:
        if number in bodies and count == 0:
            bodies.pop(number).release()
        else:
            body = bodies.setdefault(number, budget.open(owner))
            before = body.size
            with suppress(PaddockError):
                body.grow(count)
            assert body.size in (before, before + count)
        sizes = [body.size for body in bodies.values()]
        assert budget.held == sum(sizes) <= total
        assert budget.held_large == sum(size for size in sizes if size > SMALL) <= budget.for_large
        for name in "abc":
            own = sum(body.size for body in bodies.values() if body.owner == name)
            assert budget.held_by(name) == own <= budget.for_owner
    for body in bodies.values():
        body.release()
        body.release()
    assert (budget.held, budget.held_large) == (0, 0)


def test_small_bodies_are_accepted_while_large_ones_use_their_share() -> None:
    budget = BodyBudget(16 * SMALL)
    for owner in "ab":
        for _ in range(3):
            budget.open(owner).grow(2 * SMALL)
    with pytest.raises(PaddockError, match="use all of the"):
        budget.open("c").grow(2 * SMALL)
    for _ in range(4):
        budget.open("c").grow(SMALL)


@given(chunks=st.lists(st.tuples(st.floats(0.001, 30), st.integers(0, 100_000)), max_size=50))
def test_a_body_at_the_minimum_rate_has_a_limited_time(chunks: list[tuple[float, int]]) -> None:
    pace, now, size = Pace(10, 1000, 0.0), 0.0, 0
    for pause, count in chunks:
        if now + pause > pace.deadline:
            break
        now += pause
        size += count
        pace.received(count, now)
        assert pace.deadline <= now + 10
    assert now <= 10 + size / 1000, "each period brought the minimum"


def test_a_fast_start_gives_no_credit() -> None:
    pace = Pace(10, 1000, 0.0)
    pace.received(10_000_000, 0.5)
    assert pace.deadline == 10.5
    pace.received(9_999, 10)
    assert pace.deadline == 10.5
    pace.received(1, 10.2)
    assert pace.deadline == 20.2


def test_a_server_enforces_its_budget(tmp_path: Path) -> None:
    keys = {name: {"key": name} for name in "abc"}
    config = {"max_body_bytes": _MIB, "max_buffered_bytes": 4 * _MIB, "body_timeout": 600, "keys": keys}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"server": config}))
    with Server("-m", "fake:", "--config", str(file)) as server, ExitStack() as opened:

        def buffered() -> int:
            found = re.search(r"^paddock_http_buffered_body_bytes (\S+)$", server.client.get("/metrics").text, re.M)
            assert found is not None
            return int(float(found[1]))

        def hold(key: str) -> Wire:
            wire = opened.enter_context(Wire(server.url))
            return wire.send(post(_CHAT, b"x" * (_MIB - 1), f"Authorization: Bearer {key}", length=_MIB))

        def ask(key: str, body: bytes) -> tuple[int, str, str]:
            with Wire(server.url) as wire:
                answer = wire.send(post(_CHAT, body, f"Authorization: Bearer {key}")).answer()
                code = answer.code if answer.status != 200 else ""
                return answer.status, code, answer.headers.get("retry-after", "")

        small = json.dumps(chat_body("say: hello")).encode()
        large = json.dumps(chat_body("say: hello")).encode().ljust(_MIB - 2)
        held = [hold("a"), hold("a")]
        wait_for(lambda: buffered() == 2 * (_MIB - 1), 20, "two buffered bodies")
        assert ask("a", large) == (429, "rate_limit_exceeded", "1")
        assert ask("b", large)[0] == 200
        held.append(hold("b"))
        wait_for(lambda: buffered() == 3 * (_MIB - 1), 20, "three buffered bodies")
        assert ask("c", large) == (503, "buffers_full", "1")
        assert ask("c", small)[0] == 200
        held[0].socket.close()
        wait_for(lambda: buffered() == 2 * (_MIB - 1), 20, "one body to be released")
        assert ask("c", large)[0] == 200
        for wire in held[1:]:
            wire.socket.close()
        wait_for(lambda: buffered() == 0, 20, "all bodies to be released")


def test_a_body_that_stops_after_a_fast_start_is_refused() -> None:
    with Server("-m", "fake:", env={"PADDOCK_SERVER__BODY_TIMEOUT": "1"}) as server, Wire(server.url) as wire:
        wire.send(post(_CHAT, b"x" * (8 * _MIB), length=9 * _MIB))
        answer = wire.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert "8192 bytes are required every 1 s" in answer.json()["error"]["message"]
