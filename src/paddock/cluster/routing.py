"""Paddock's choice among replicas, as Ray Serve's routers want to be told it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from paddock.cluster.routers import register
from paddock.pool.routing import Choice, Load, Router


class PrefixRouter(RequestRouter):
    """There is one in each process that sends requests, for each application. It runs on a loop of Ray's own; what
    others read of it is copied in one go.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """With `deterministic` only those are asked that have the fingerprint of the first that was seen."""
        self._deterministic = bool(kwargs.get("deterministic"))
        self._reference = ""
        self._choices = Router()
        self._names: set[str] = set()
        self._running: Counter[str] = Counter()
        self._chosen: dict[str, Choice] = {}
        self.chosen: Counter[tuple[str, str]] = Counter()
        """By replica, and why it was chosen."""
        register(self.app_name, self)

    # ── what Ray asks ────────────────────────────────────────────────────────────────────────────────────────────────

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Who should get it, and then, should that one have no room, the others."""
        able = [replica for replica in candidate_replicas if not self.excludes(replica)]
        if pending_request is None:
            return [able]
        by_name = {name_of(replica): replica for replica in able}
        loads = {name: self._load(name, replica) for name, replica in by_name.items()}
        choice = self._choices.choose(_chain(pending_request), loads)
        if choice is None:
            return [able]
        self._chosen[pending_request.metadata.internal_request_id] = choice
        return [[by_name[choice.name]], [replica for name, replica in by_name.items() if name != choice.name]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        name = replica_id.unique_id
        self._running[name] += 1
        self._choices.began(name, _chain(pending_request))
        choice = self._chosen.pop(pending_request.metadata.internal_request_id, None)
        if choice is not None:
            self.chosen[name, choice.reason if choice.name == name else "load"] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._running[replica_id.unique_id] -= 1

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

    # ── what others want to know ─────────────────────────────────────────────────────────────────────────────────────

    def replicas(self) -> list[RunningReplica]:
        return list(self.curr_replicas.values())

    def excludes(self, replica: RunningReplica) -> bool:
        """Whether it is another model, build or flags than what must be the same everywhere."""
        if not self._deterministic:
            return False
        marks = [fingerprint_of(other) for other in self.replicas()]
        if self._reference not in marks:
            self._reference = next((mark for mark in marks if mark), "")
        return fingerprint_of(replica) not in ("", self._reference)

    def _load(self, name: str, replica: RunningReplica) -> Load:
        """As far as this process knows: others may have sent something too, which Ray hears of with each answer."""
        there = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return Load(max(there, self._running[name]), 0, int(replica.replica_metadata.get("slots", 1)))

    def _forget(self, name: str) -> None:
        self._choices.remove(name)
        self._running.pop(name, None)


def name_of(replica: RunningReplica) -> str:
    name: str = replica.replica_id.unique_id
    return name


def fingerprint_of(replica: RunningReplica) -> str:
    return str(replica.replica_metadata.get("fingerprint", ""))


def _chain(pending_request: PendingRequest) -> tuple[int, ...]:
    """The first argument of a request for text; other requests can go anywhere."""
    first = pending_request.args[0] if pending_request.args else ()
    return first if isinstance(first, tuple) else ()
