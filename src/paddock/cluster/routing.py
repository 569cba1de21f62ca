"""Paddock's routing as a Ray Serve request router."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from paddock.cluster.router_registry import register
from paddock.replicas.routing import Choice, Load, Router

_MOST_REMEMBERED = 256


class PrefixRouter(RequestRouter):
    """One per application in each process that sends requests. It runs on an event loop of Ray; other threads read
    copies.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """With `deterministic`, only replicas with the first seen fingerprint are used."""
        self._deterministic = bool(kwargs.get("deterministic"))
        self._reference = ""
        self._choices = Router()
        self._names: set[str] = set()
        self._in_flight = InFlight()
        self._reasons: OrderedDict[str, Choice] = OrderedDict()
        self.chosen: Counter[tuple[str, str]] = Counter()
        """Requests by replica and reason."""
        register(self.app_name, self)

    # ── called by Ray ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The preferred replica, then the others in case it is full."""
        able = self._alike(candidate_replicas)
        if pending_request is None:
            return [able]
        by_name = {name_of(replica): replica for replica in able}
        loads = {name: self._load(name, replica) for name, replica in by_name.items()}
        choice = self._choices.choose(_chain(pending_request), loads, is_batch=_is_batch(pending_request))
        if choice is None:
            return [able]
        self._reasons[pending_request.metadata.internal_request_id] = choice
        while len(self._reasons) > _MOST_REMEMBERED:  # of cancelled requests
            self._reasons.popitem(last=False)
        return [[by_name[choice.name]], [replica for name, replica in by_name.items() if name != choice.name]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        name, request = replica_id.unique_id, pending_request.metadata.internal_request_id
        self._in_flight.began(name, request)
        self._choices.began(name, _chain(pending_request))
        if (choice := self._reasons.pop(request, None)) is not None:
            self.chosen[name, choice.reason if choice.name == name else "load"] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._in_flight.ended(replica_id.unique_id, internal_request_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        names = {name_of(replica) for replica in replicas}
        for name in names - self._names:
            self._choices.add(name)
        for name in self._names - names:
            self._forget(name)
        self._names = names
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        self._forget(replica_id.unique_id)
        self._names.discard(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    # ── called by the gateway ─────────────────────────────────────────────────────────────────────────────────────────

    def replicas(self) -> list[RunningReplica]:
        return list(self.curr_replicas.values())

    def held(self, chain: tuple[int, ...]) -> dict[str, int]:
        """How many leading blocks of the chain each replica likely has cached, as this process knows."""
        return self._choices.held(chain)

    def excluded(self) -> set[str]:
        """The names of replicas with a different model, build or flags."""
        there = self.replicas()
        return {name_of(replica) for replica in there} - {name_of(replica) for replica in self._alike(there)}

    def _alike(self, replicas: list[RunningReplica]) -> list[RunningReplica]:
        """In deterministic mode: the replicas with the first seen fingerprint, as long as one has it."""
        if not self._deterministic:
            return replicas
        marks = [fingerprint_of(replica) for replica in replicas]
        if self._reference not in marks:
            self._reference = next((mark for mark in marks if mark), "")
        return [replica for replica, mark in zip(replicas, marks, strict=True) if mark in ("", self._reference)]

    def _load(self, name: str, replica: RunningReplica) -> Load:
        """The load known to this process. Ray learns the load from other processes with each response."""
        there = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return Load(max(there, self._in_flight.at(name)), 0, int(replica.replica_metadata.get("slots", 1)))

    def _forget(self, name: str) -> None:
        self._choices.remove(name)
        self._in_flight.forget(name)
        for gone in [key for key in list(self.chosen) if key[0] == name]:
            del self.chosen[gone]


class InFlight:
    """The running requests of each replica. Ray may report an end before its start, and reports the ends of rejected
    requests.
    """

    def __init__(self) -> None:
        self._requests: dict[str, set[str]] = {}
        self._over: deque[tuple[str, str]] = deque(maxlen=_MOST_REMEMBERED)

    def began(self, replica: str, request: str) -> None:
        if (replica, request) not in self._over:
            self._requests.setdefault(replica, set()).add(request)

    def ended(self, replica: str, request: str) -> None:
        there = self._requests.get(replica, set())
        if request in there:
            there.discard(request)
        else:
            self._over.append((replica, request))

    def forget(self, replica: str) -> None:
        self._requests.pop(replica, None)

    def at(self, replica: str) -> int:
        return len(self._requests.get(replica, ()))


def name_of(replica: RunningReplica) -> str:
    name: str = replica.replica_id.unique_id
    return name


def fingerprint_of(replica: RunningReplica) -> str:
    return str(replica.replica_metadata.get("fingerprint", ""))


def _chain(pending_request: PendingRequest) -> tuple[int, ...]:
    """The first argument of a generation; other requests can go to any replica."""
    first = pending_request.args[0] if pending_request.args else ()
    return first if isinstance(first, tuple) else ()


def _is_batch(pending_request: PendingRequest) -> bool:
    """The third argument of a generation."""
    return len(pending_request.args) > 2 and pending_request.args[2] is True
