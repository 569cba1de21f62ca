"""Who of several is asked, decided without any of them: stand-ins that are as the test says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import (
    InvalidRequest,
    NoReplica,
    PaddockError,
    QueueFull,
    ReplicaFailed,
    ReplicaLost,
    ServerStopping,
    UnsupportedParameter,
    WorkerCrashed,
)
from paddock.replicas.pool import Entrance, Pool
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.retries import MOST_RESTARTS
from paddock.replicas.routing import Load
from paddock.types import ChatPrompt, GenerateRequest, ModelInfo, SlotState, TextPrompt

_INFO = ModelInfo("", 512, 512, 1, 1, 1, n_slots=2, fingerprint="fp_same")


@dataclass
class StandIn:
    name: str
    usable: bool = True
    awake: bool = True
    running: int = 0
    life: int = 0
    info: ModelInfo | None = _INFO
    refusal: PaddockError | None = None
    failure: PaddockError | None = None
    """What `enter` raises."""
    woken: int = 0
    left: bool = False
    closed: list[str] = field(default_factory=list)

    @property
    def load(self) -> Load:
        return Load(self.running, 0, 2)

    def beyond(self, request: GenerateRequest) -> PaddockError | None:
        return self.refusal

    async def enter(self, *, exact: bool) -> Any:
        if self.failure is not None:
            raise self.failure
        return self

    def wake(self) -> None:
        self.woken += 1

    async def slots(self) -> list[SlotState]:
        return []

    async def leave(self) -> None:
        self.left = True

    async def stop(self, grace: float | None) -> None:
        self.closed.append("stopped")

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(self.name, "server", "ready" if self.usable else "down", "llama.cpp", "b1", self.load)

    def start(self) -> None:
        pass

    async def close(self) -> None:
        self.closed.append("closed")


def request(text: str = "hello", **more: Any) -> GenerateRequest:
    return GenerateRequest(TextPrompt(text), **more)


def entered(entrance: Entrance) -> str:
    asyncio.run(entrance.enter())
    return entrance.replica


def test_the_same_beginning_goes_to_the_same_replica_until_that_is_busier() -> None:
    a, b = StandIn("a"), StandIn("b")
    pool = Pool("m", [a, b], deterministic=False)
    long = "word " * 400
    first = entered(pool.entrance(request(long)))
    assert entered(pool.entrance(request(long + "and more"))) == first
    {"a": a, "b": b}[first].running = 2
    assert entered(pool.entrance(request(long))) != first


def test_a_conversation_is_known_by_how_it_begins() -> None:
    pool = Pool("m", [StandIn(name) for name in "abcd"], deterministic=False)
    messages = [{"role": "system", "content": "Be kind. " * 50}, {"role": "user", "content": "Hello!"}]

    def chat(*more: dict[str, Any]) -> GenerateRequest:
        return GenerateRequest(ChatPrompt([*messages, *more]))

    first = entered(pool.entrance(chat()))
    assert entered(pool.entrance(chat({"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}))) == first
    assert pool.chosen[first, "prefix"] == 1


def test_who_was_started_anew_knows_nothing() -> None:
    replicas = {name: StandIn(name) for name in "ab"}
    pool = Pool("m", list(replicas.values()), deterministic=False)
    long = "word " * 400
    replicas[entered(pool.entrance(request(long)))].life += 1
    again = entered(pool.entrance(request(long)))
    assert pool.chosen[again, "new"] >= 1 and not pool.chosen[again, "prefix"]


def test_nobody_waits_for_a_load_while_somebody_is_there_but_one_is_begun_when_all_are_busy() -> None:
    awake, asleep = StandIn("a", running=1), StandIn("b", awake=False)
    pool = Pool("m", [awake, asleep], deterministic=False)
    assert entered(pool.entrance(request())) == "a"
    assert asleep.woken == 0
    awake.running = 2
    assert entered(pool.entrance(request())) == "a"
    assert asleep.woken == 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_only_who_can_be_used_and_is_not_drained_is_asked(states: list[tuple[bool, bool]]) -> None:
    replicas = [StandIn(str(number), usable=usable) for number, (usable, _) in enumerate(states)]
    pool = Pool("m", replicas, deterministic=False)
    for number, (_, drained) in enumerate(states):
        if drained:
            asyncio.run(pool.drain(str(number)))
    there = {str(number) for number, (usable, drained) in enumerate(states) if usable and not drained}
    if there:
        assert entered(pool.entrance(request())) in there
    else:
        with pytest.raises(NoReplica) as error:
            entered(pool.entrance(request()))
        assert all(f"{number} (" in error.value.message for number in range(len(states)))
    assert all(replica.left == drained for replica, (_, drained) in zip(replicas, states, strict=True))


def test_who_fails_to_let_it_in_is_passed_over() -> None:
    bad = StandIn("bad", failure=ReplicaFailed("no"))
    good = StandIn("good", running=2)
    pool = Pool("m", [bad, good], deterministic=False)
    assert entered(pool.entrance(request())) == "good"
    assert pool.retried["bad"] == 1


def test_when_all_fail_the_last_reason_is_told() -> None:
    pool = Pool("m", [StandIn(name, failure=QueueFull(f"{name} is full")) for name in "abc"], deterministic=False)
    with pytest.raises(QueueFull):
        entered(pool.entrance(request()))


@pytest.mark.parametrize(
    ("errors", "allowed"),
    [
        ([InvalidRequest("no")], [False]),
        ([ServerStopping("no")], [False]),
        ([QueueFull("no"), ReplicaFailed("no"), QueueFull("no")], [True, True, False]),
        ([ReplicaLost("gone"), ReplicaLost("gone")], [True, False]),
        ([WorkerCrashed("dead")] * (MOST_RESTARTS + 1), [True] * MOST_RESTARTS + [False]),
    ],
)
def test_what_is_worth_another_attempt(errors: list[PaddockError], allowed: list[bool]) -> None:
    entrance = Pool("m", [StandIn(name) for name in "abc"], deterministic=False).entrance(request())
    assert [entrance.may_go_elsewhere(error) for error in errors] == allowed


def test_what_one_cannot_do_another_may() -> None:
    poor, rich = StandIn("poor", refusal=UnsupportedParameter("no", param="regex")), StandIn("rich", running=2)
    assert entered(Pool("m", [poor, rich], deterministic=False).entrance(request())) == "rich"
    with pytest.raises(UnsupportedParameter) as error:
        entered(Pool("m", [poor], deterministic=False).entrance(request()))
    assert error.value.param == "regex"


@pytest.mark.parametrize("by_request", [True, False])
def test_who_differs_is_left_out_of_what_must_be_exact(by_request: bool) -> None:
    same, other = StandIn("same", running=2), StandIn("other")
    other.info = msgspec.structs.replace(_INFO, fingerprint="fp_other")
    pool = Pool("m", [same, other], deterministic=not by_request)
    assert entered(pool.entrance(request(deterministic=by_request))) == "same"
    assert [status.excluded != "" for status in pool.status()] == [False, True]
    same.info = None  # unloaded for a while: what it was still holds
    same.usable = False
    with pytest.raises(NoReplica):
        entered(pool.entrance(request(deterministic=by_request)))
    asyncio.run(pool.drain("same"))
    assert entered(pool.entrance(request(deterministic=by_request))) == "other"


def test_a_pool_that_was_replaced_lets_its_replicas_finish_and_says_so() -> None:
    one = StandIn("a")
    pool = Pool("m", [one], deterministic=False)
    asyncio.run(pool.retire())
    assert one.closed == ["stopped", "closed"]
    with pytest.raises(PaddockError, match="ask again"):
        entered(pool.entrance(request()))
