"""Replicas behind one name: who is asked, who is asked next should that fail, and who is left out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import get_args, get_type_hints

import msgspec
import structlog

from paddock.errors import InvalidRequest, ModelUnloaded, NoReplica, PaddockError, ServerStopping
from paddock.replicas.prompts import chain_for
from paddock.replicas.replica import Replica, ReplicaStatus, Serving
from paddock.replicas.retries import MOST_RESTARTS, Retries
from paddock.replicas.routing import Choice, Router
from paddock.types import GenerateRequest, ModelInfo, SlotState

_log = structlog.get_logger(__name__)

_RETRY = "retry"
REASONS = (*get_args(get_type_hints(Choice)["reason"]), _RETRY)


class Pool:
    def __init__(self, name: str, replicas: Sequence[Replica], *, deterministic: bool) -> None:
        self.name = name
        self.replicas = {replica.name: replica for replica in replicas}
        self.chosen: Counter[tuple[str, str]] = Counter()
        """By replica, and why it was chosen."""
        self.retried: Counter[str] = Counter()
        """By replica that failed before anything was told, so that another one was asked."""
        self._deterministic = deterministic
        self._router = Router(self.replicas)
        self._lives = {name: replica.life for name, replica in self.replicas.items()}
        self._drained: set[str] = set()
        self._reference = ""
        self._fingerprints: dict[str, str] = {}
        self._excluded: dict[str, str] = {}
        self._ended: PaddockError | None = None

    def entrance(self, request: GenerateRequest | None) -> Entrance:
        """The way in for one request, however many replicas it takes; None: a question that anybody can answer."""
        return Entrance(self, request)

    def status(self) -> list[ReplicaStatus]:
        self._compare()
        return [
            replace(
                replica.status(),
                drained=name in self._drained,
                excluded=self._excluded.get(name, ""),
                chosen={reason: self.chosen[name, reason] for reason in REASONS},
                retried=self.retried[name],
            )
            for name, replica in self.replicas.items()
        ]

    @property
    def info(self) -> ModelInfo | None:
        """What the first that is known says of the model, and how many requests all together can run at once."""
        known = [replica.info for replica in self.replicas.values() if replica.info is not None]
        return msgspec.structs.replace(known[0], n_slots=sum(info.n_slots for info in known)) if known else None

    async def slots(self) -> list[SlotState]:
        there = [replica for replica in self.replicas.values() if replica.usable]
        return [slot for replica in there for slot in await replica.slots()]

    def drain(self, name: str) -> Coroutine[None, None, None]:
        self._known(name)
        return self._drain(name)

    async def _drain(self, name: str) -> None:
        self._drained.add(name)
        await self.replicas[name].leave()
        _log.info("replica drained", model=self.name, replica=name)

    def undrain(self, name: str) -> bool:
        self._known(name)
        there = name in self._drained
        self._drained.discard(name)
        return there

    def start(self) -> None:
        for replica in self.replicas.values():
            replica.start()

    async def retire(self) -> None:
        """Another pool takes its place: let everybody finish, and be done."""
        self._ended = ModelUnloaded(f"the replicas of {self.name} have just changed: ask again", retry_after=1)
        await asyncio.gather(*(replica.stop(None) for replica in self.replicas.values()))
        await self.close()

    async def stop(self, grace: float) -> None:
        """The server stops: take nothing new, and give what is under way elsewhere so many seconds."""
        self._ended = ServerStopping("the server is stopping")
        await asyncio.gather(*(replica.stop(grace) for replica in self.replicas.values()))

    async def close(self) -> None:
        for replica in self.replicas.values():
            await replica.close()

    # ── choosing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _known(self, name: str) -> None:
        if name not in self.replicas:
            there = ", ".join(self.replicas)
            raise InvalidRequest(f"{self.name} has no replica {name!r}; it has {there}", param="replica")

    def exact(self, request: GenerateRequest | None) -> bool:
        """Whether its answer must be the same wherever it is given."""
        return request is not None and (self._deterministic or request.deterministic)

    def choose(
        self, request: GenerateRequest | None, chain: tuple[int, ...], tried: set[str], only: str = ""
    ) -> Replica:
        """Raises `NoReplica`, or why none of those there are can do what the request asks for.

        Whoever was tried gets another chance when nobody else is left. While those that are loaded have all they can
        do one more is loaded, but nobody waits for that. `only` is the one replica that may be asked.
        """
        if self._ended is not None:
            raise self._ended
        self._forget_restarted()
        if only:
            self.chosen[only, _RETRY] += 1
            return self.replicas[only]
        usable = list(self._usable(exact=self.exact(request)))
        if not usable:
            raise NoReplica(f"none of the replicas of {self.name} can be used: {self._why_not()}", retry_after=1)
        refusals = {replica.name: replica.beyond(request) if request is not None else None for replica in usable}
        able = [replica for replica in usable if refusals[replica.name] is None]
        if not able:
            raise next(refusal for refusal in refusals.values() if refusal is not None)
        able = [replica for replica in able if replica.name not in tried] or able
        awake = [replica for replica in able if replica.awake]
        if awake and all(replica.load.running >= replica.load.slots for replica in awake):
            for replica in able:
                if not replica.awake:
                    replica.wake()
                    break
        loads = {replica.name: replica.load for replica in awake or able}
        choice = self._router.choose(chain, loads)
        assert choice is not None, "there is one"
        self.chosen[choice.name, choice.reason] += 1
        return self.replicas[choice.name]

    def began(self, replica: Replica, chain: tuple[int, ...]) -> None:
        self._router.began(replica.name, chain)

    def is_excluded(self, replica: Replica) -> bool:
        """From what must be exact; asked when its fingerprint is known."""
        self._compare()
        return replica.name in self._excluded

    def _usable(self, *, exact: bool) -> Iterator[Replica]:
        self._compare()
        for name, replica in self.replicas.items():
            if name not in self._drained and replica.usable and not (exact and name in self._excluded):
                yield replica

    def _compare(self) -> None:
        """Find out whose fingerprint is not the one that was known first. That one holds, also while who has it is not
        loaded or down; but not when all who have it are drained, as for an upgrade.
        """
        for name, replica in self.replicas.items():
            if replica.info is not None and replica.info.fingerprint:
                self._fingerprints[name] = replica.info.fingerprint
        there = [mark for name, mark in self._fingerprints.items() if name not in self._drained]
        if there and self._reference not in there:
            self._reference = there[0]
        differing = {
            name: f"its fingerprint {mark} is not {self._reference} as of the others: another model, build or flags"
            for name, mark in self._fingerprints.items()
            if mark != self._reference
        }
        write = _log.warning if self._deterministic else _log.info
        for name in differing.keys() - self._excluded.keys():
            write("replica differs", pool=self.name, replica=name, reason=differing[name])
        self._excluded = differing

    def _why_not(self) -> str:
        reasons = []
        for status in self.status():
            reason = "drained" if status.drained else status.failure or status.excluded or status.health
            reasons.append(f"{status.name} ({reason})")
        return ", ".join(reasons)

    def _forget_restarted(self) -> None:
        for name, replica in self.replicas.items():
            if replica.life != self._lives[name]:
                self._lives[name] = replica.life
                self._router.forget(name)


class Entrance:
    """One request's way to somebody who answers it. It remembers who has failed it."""

    def __init__(self, pool: Pool, request: GenerateRequest | None) -> None:
        self._pool = pool
        self._request = request
        self._chain = chain_for(request)
        self._tried: set[str] = set()
        self._retries = Retries(max(2, len(pool.replicas)), 1 if request is None else MOST_RESTARTS)
        self.replica = ""
        """Whom it came to."""

    async def enter(self) -> Serving:
        exact = self._pool.exact(self._request)
        while True:
            replica = self._pool.choose(self._request, self._chain, self._tried, only=self._retries.only)
            self.replica = replica.name
            try:  # what `choose` raises is about all of them
                serving = await replica.enter(exact=exact)
            except PaddockError as error:
                if not self.may_go_elsewhere(error):
                    raise
                continue
            if exact and self._pool.is_excluded(replica):
                self._tried.add(replica.name)
                continue
            self._pool.began(replica, self._chain)
            return serving

    def may_go_elsewhere(self, error: PaddockError) -> bool:
        """Whether it is worth another attempt after this failure, of which nobody has been told."""
        self._tried.add(self.replica)
        if not self._retries.allow(error, self.replica):
            return False
        self._pool.retried[self.replica] += 1
        _log.warning(
            "asked again" if self._retries.only else "another replica is asked",
            pool=self._pool.name,
            replica=self.replica,
            error=error.message,
        )
        return True
