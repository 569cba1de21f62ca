"""Which replica gets a request, with fake replicas in the state that the test sets."""

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
    Unavailable,
    UnsupportedParameter,
    WorkerCrashed,
)
from paddock.replicas.replica import ReplicaStatus
from paddock.replicas.replica_set import ReplicaDispatch, ReplicaSet
from paddock.replicas.retries import MOST_RESTARTS
from paddock.replicas.routing import Load
from paddock.types import ChatPrompt, GenerateRequest, ModelInfo, SlotState, TextPrompt

_INFO = ModelInfo("", 512, 512, 1, 1, 1, n_slots=2, fingerprint="fp_same")


@dataclass
class FakeReplica:
    name: str
    usable: bool = True
    is_doubtful: bool = False
    is_loaded: bool = True
    running: int = 0
    epoch: int = 0
    info: ModelInfo | None = _INFO
    refusal: PaddockError | None = None
    failure: PaddockError | None = None
    """What `acquire` raises."""
    loads_started: int = 0
    drained: bool = False
    closed: list[str] = field(default_factory=list)

    @property
    def load(self) -> Load:
        return Load(self.running, 0, 2)

    def unsupported(self, request: GenerateRequest) -> PaddockError | None:
        return self.refusal

    async def acquire(self, *, exact: bool) -> Any:
        if self.failure is not None:
            raise self.failure
        return self

    def start_load(self) -> None:
        self.loads_started += 1

    async def slots(self) -> list[SlotState]:
        return []

    async def drain(self) -> None:
        self.drained = True

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


def acquired(dispatch: ReplicaDispatch) -> str:
    asyncio.run(dispatch.acquire())
    return dispatch.replica


def test_the_same_prefix_goes_to_the_same_replica() -> None:
    a, b = FakeReplica("a"), FakeReplica("b")
    pool = ReplicaSet("m", [a, b], deterministic=False)
    long = "word " * 400
    first = acquired(pool.dispatch(request(long)))
    assert acquired(pool.dispatch(request(long + "and more"))) == first
    {"a": a, "b": b}[first].running = 2
    assert acquired(pool.dispatch(request(long))) != first


def test_a_replica_that_was_loaded_for_a_request_keeps_its_prefix() -> None:
    class Unloaded(FakeReplica):
        async def acquire(self, *, exact: bool) -> Any:
            self.epoch += self.epoch == 0
            return self

    pool = ReplicaSet("m", [Unloaded("a"), Unloaded("b")], deterministic=False)
    home = acquired(pool.dispatch(request("word " * 400)))
    for _ in range(2):
        assert [span.held for span in pool.prefixes()] == [{home: 1.0}]
    pool.replicas[home].epoch = 2  # type: ignore[misc]
    assert [span.held for span in pool.prefixes()] == [{}]


def test_conversations_are_routed_by_prefix() -> None:
    pool = ReplicaSet("m", [FakeReplica(name) for name in "abcd"], deterministic=False)
    messages = [{"role": "system", "content": "Be kind. " * 50}, {"role": "user", "content": "Hello!"}]

    def chat(*more: dict[str, Any]) -> GenerateRequest:
        return GenerateRequest(ChatPrompt([*messages, *more]))

    first = acquired(pool.dispatch(chat()))
    assert acquired(pool.dispatch(chat({"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}))) == first
    assert pool.chosen[first, "prefix"] == 1


def test_a_restarted_replica_has_an_empty_cache() -> None:
    replicas = {name: FakeReplica(name) for name in "ab"}
    pool = ReplicaSet("m", list(replicas.values()), deterministic=False)
    long = "word " * 400
    replicas[acquired(pool.dispatch(request(long)))].epoch += 1
    again = acquired(pool.dispatch(request(long)))
    assert pool.chosen[again, "new"] >= 1 and not pool.chosen[again, "prefix"]


def test_another_replica_is_loaded_when_all_are_busy() -> None:
    loaded, asleep = FakeReplica("a", running=1), FakeReplica("b", is_loaded=False)
    pool = ReplicaSet("m", [loaded, asleep], deterministic=False)
    assert acquired(pool.dispatch(request())) == "a"
    assert asleep.loads_started == 0
    loaded.running = 2
    assert acquired(pool.dispatch(request())) == "a"
    assert asleep.loads_started == 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_unusable_and_drained_replicas_are_skipped(states: list[tuple[bool, bool]]) -> None:
    replicas = [FakeReplica(str(number), usable=usable) for number, (usable, _) in enumerate(states)]
    pool = ReplicaSet("m", replicas, deterministic=False)
    for number, (_, drained) in enumerate(states):
        if drained:
            asyncio.run(pool.drain(str(number)))
    there = {str(number) for number, (usable, drained) in enumerate(states) if usable and not drained}
    if there:
        assert acquired(pool.dispatch(request())) in there
    else:
        with pytest.raises(NoReplica) as error:
            acquired(pool.dispatch(request()))
        assert all(f"{number} (" in error.value.message for number in range(len(states)))
    assert all(replica.drained == drained for replica, (_, drained) in zip(replicas, states, strict=True))


def test_a_replica_that_missed_health_checks_is_tried_if_no_other_is_usable() -> None:
    slow, good = FakeReplica("slow", usable=False, is_doubtful=True), FakeReplica("good", running=2)
    pool = ReplicaSet("m", [slow, good], deterministic=False)
    assert acquired(pool.dispatch(request())) == "good"
    good.usable = False
    assert acquired(pool.dispatch(request())) == "slow"
    asyncio.run(pool.drain("slow"))
    with pytest.raises(NoReplica):
        acquired(pool.dispatch(request()))


def test_a_replica_that_refuses_is_followed_by_one_that_missed_health_checks() -> None:
    bad = FakeReplica("bad", failure=ReplicaFailed("no"))
    slow = FakeReplica("slow", usable=False, is_doubtful=True)
    pool = ReplicaSet("m", [bad, slow], deterministic=False)
    dispatch = pool.dispatch(request())
    bad.usable = True
    assert pool.choose(request(), (), set()) is bad
    bad.usable = False  # its connection was refused
    dispatch.replica = "bad"
    assert dispatch.should_retry(ReplicaFailed("no"))
    assert acquired(dispatch) == "slow"


def test_replicas_that_are_down_are_tried_once_each() -> None:
    replicas = [
        FakeReplica(name, usable=False, is_doubtful=True, failure=Unavailable(f"{name} is down")) for name in "abc"
    ]
    pool = ReplicaSet("m", replicas, deterministic=False)
    with pytest.raises(Unavailable):
        acquired(pool.dispatch(request()))
    assert sum(pool.chosen.values()) == 3
    assert sum(pool.retried.values()) == 2


def test_a_failing_replica_is_skipped() -> None:
    bad = FakeReplica("bad", failure=ReplicaFailed("no"))
    good = FakeReplica("good", running=2)
    pool = ReplicaSet("m", [bad, good], deterministic=False)
    assert acquired(pool.dispatch(request())) == "good"
    assert pool.retried["bad"] == 1


def test_the_last_error_is_raised_when_all_fail() -> None:
    pool = ReplicaSet(
        "m", [FakeReplica(name, failure=QueueFull(f"{name} is full")) for name in "abc"], deterministic=False
    )
    with pytest.raises(QueueFull):
        acquired(pool.dispatch(request()))


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
def test_retryable_errors(errors: list[PaddockError], allowed: list[bool]) -> None:
    dispatch = ReplicaSet("m", [FakeReplica(name) for name in "abc"], deterministic=False).dispatch(request())
    assert [dispatch.should_retry(error) for error in errors] == allowed


def test_unsupported_requests_go_to_another_replica() -> None:
    poor, rich = FakeReplica("poor", refusal=UnsupportedParameter("no", param="regex")), FakeReplica("rich", running=2)
    assert acquired(ReplicaSet("m", [poor, rich], deterministic=False).dispatch(request())) == "rich"
    with pytest.raises(UnsupportedParameter) as error:
        acquired(ReplicaSet("m", [poor], deterministic=False).dispatch(request()))
    assert error.value.param == "regex"


@pytest.mark.parametrize("by_request", [True, False])
def test_differing_replicas_are_excluded_from_deterministic_requests(by_request: bool) -> None:
    same, other = FakeReplica("same", running=2), FakeReplica("other")
    other.info = msgspec.structs.replace(_INFO, fingerprint="fp_other")
    pool = ReplicaSet("m", [same, other], deterministic=not by_request)
    assert acquired(pool.dispatch(request(deterministic=by_request))) == "same"
    assert [status.excluded != "" for status in pool.status()] == [False, True]
    same.info = None  # its fingerprint stays known while it is unloaded
    same.usable = False
    with pytest.raises(NoReplica):
        acquired(pool.dispatch(request(deterministic=by_request)))
    asyncio.run(pool.drain("same"))
    assert acquired(pool.dispatch(request(deterministic=by_request))) == "other"


def test_a_retired_set_finishes_its_requests() -> None:
    one = FakeReplica("a")
    pool = ReplicaSet("m", [one], deterministic=False)
    asyncio.run(pool.retire())
    assert one.closed == ["stopped", "closed"]
    with pytest.raises(PaddockError, match="send the request again"):
        acquired(pool.dispatch(request()))
