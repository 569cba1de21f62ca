"""The replicas of one model: which one gets a request, retries, and exclusions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import get_args, get_type_hints

import msgspec
import structlog

from paddock.errors import InvalidRequest, ModelUnloaded, NoReplica, PaddockError, ServerStopping
from paddock.replicas.prefix_spans import PrefixSpan, RecentPrompts
from paddock.replicas.prompts import chain_for
from paddock.replicas.replica import Backend, Replica, ReplicaStatus
from paddock.replicas.retries import MOST_RESTARTS, Retries
from paddock.replicas.routing import Choice, Router
from paddock.types import GenerateRequest, ModelInfo, SlotState

_log = structlog.get_logger(__name__)

_RETRY = "retry"
REASONS = (*get_args(get_type_hints(Choice)["reason"]), _RETRY)


class ReplicaSet:
    def __init__(self, name: str, replicas: Sequence[Replica], *, deterministic: bool) -> None:
        self.name = name
        self.replicas = {replica.name: replica for replica in replicas}
        self.chosen: Counter[tuple[str, str]] = Counter()
        """Requests by replica and reason."""
        self.retried: Counter[str] = Counter()
        """Retried requests, by the replica that failed."""
        self._deterministic = deterministic
        self._router = Router(self.replicas)
        self._recent = RecentPrompts()
        self._epochs = {name: replica.epoch for name, replica in self.replicas.items()}
        self._drained: set[str] = set()
        self._reference = ""
        self._fingerprints: dict[str, str] = {}
        self._excluded: dict[str, str] = {}
        self._ended: PaddockError | None = None

    def dispatch(self, request: GenerateRequest | None) -> ReplicaDispatch:
        """The dispatch of one request over its attempts; None: a question that any replica can answer."""
        return ReplicaDispatch(self, request)

    def status(self) -> list[ReplicaStatus]:
        self._compare_fingerprints()
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
        """The model's info from the first known replica, with the slots of all."""
        known = [replica.info for replica in self.replicas.values() if replica.info is not None]
        return msgspec.structs.replace(known[0], n_slots=sum(info.n_slots for info in known)) if known else None

    async def slots(self) -> list[SlotState]:
        usable = [replica for replica in self.replicas.values() if replica.usable]
        return [slot for replica in usable for slot in await replica.slots()]

    def prefixes(self) -> list[PrefixSpan]:
        self._forget_restarted()
        down = {name for name, replica in self.replicas.items() if replica.status().health == "down"}
        return self._recent.spans(lambda chain: {k: n for k, n in self._router.held(chain).items() if k not in down})

    def forget_prompts(self, tenant: str | None) -> None:
        self._recent.forget(tenant)

    def drain(self, name: str) -> Coroutine[None, None, None]:
        self._check_name(name)
        return self._drain(name)

    async def _drain(self, name: str) -> None:
        self._drained.add(name)
        await self.replicas[name].drain()
        _log.info("replica drained", model=self.name, replica=name)

    def undrain(self, name: str) -> bool:
        self._check_name(name)
        was_drained = name in self._drained
        self._drained.discard(name)
        return was_drained

    def start(self) -> None:
        for replica in self.replicas.values():
            replica.start()

    async def retire(self) -> None:
        """It was replaced: finish the running requests, then close."""
        self._ended = ModelUnloaded(f"the replicas of {self.name} have changed: send the request again", retry_after=1)
        await asyncio.gather(*(replica.stop(None) for replica in self.replicas.values()))
        await self.close()

    async def stop(self, grace: float) -> None:
        """The server stops: refuse new requests, and give running remote ones `grace` seconds."""
        self._ended = ServerStopping("the server is stopping")
        await asyncio.gather(*(replica.stop(grace) for replica in self.replicas.values()))

    async def close(self) -> None:
        for replica in self.replicas.values():
            await replica.close()

    # ── choosing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_name(self, name: str) -> None:
        if name not in self.replicas:
            known = ", ".join(self.replicas)
            raise InvalidRequest(f"{self.name} has no replica {name!r}; its replicas are {known}", param="replica")

    def exact(self, request: GenerateRequest | None) -> bool:
        """Whether its response must be the same on every replica."""
        return request is not None and (self._deterministic or request.deterministic)

    def choose(
        self, request: GenerateRequest | None, chain: tuple[int, ...], tried: set[str], only: str = ""
    ) -> Replica:
        """Raises `NoReplica`, or why no usable replica supports the request.

        A replica that failed is tried again if no other is left. If none is usable, one that did not answer its health
        checks is tried: it checks its health once more, and may have been slow for a moment only. If all loaded
        replicas are busy, one more starts to load, but the request does not wait for it. `only` is the one replica that
        may be used.
        """
        if self._ended is not None:
            raise self._ended
        self._forget_restarted()
        if only:
            self.chosen[only, _RETRY] += 1
            return self.replicas[only]
        usable = list(self._usable(exact=self.exact(request)))
        if not usable:
            usable = list(self._doubtful(exact=self.exact(request), tried=tried))
        if not usable:
            raise NoReplica(f"no replica of {self.name} is usable: {self._unusable_reasons()}", retry_after=1)
        refusals = {replica.name: replica.unsupported(request) if request is not None else None for replica in usable}
        able = [replica for replica in usable if refusals[replica.name] is None]
        if not able:
            raise next(refusal for refusal in refusals.values() if refusal is not None)
        able = [replica for replica in able if replica.name not in tried] or able
        loaded = [replica for replica in able if replica.is_loaded]
        if loaded and all(replica.load.running >= replica.load.slots for replica in loaded):
            for replica in able:
                if not replica.is_loaded:
                    replica.start_load()
                    break
        loads = {replica.name: replica.load for replica in loaded or able}
        is_batch = request is not None and request.origin.batch
        choice = self._router.choose(chain, loads, is_batch=is_batch)
        assert choice is not None, "there is a candidate"
        self.chosen[choice.name, choice.reason] += 1
        return self.replicas[choice.name]

    def began(self, replica: Replica, chain: tuple[int, ...], request: GenerateRequest | None) -> None:
        self._forget_restarted()  # first: it may have been loaded for this request
        self._router.began(replica.name, chain)
        self._recent.add(chain, request)

    def is_excluded(self, replica: Replica) -> bool:
        """Whether it is excluded from deterministic requests. Its fingerprint must be known."""
        self._compare_fingerprints()
        return replica.name in self._excluded

    def _usable(self, *, exact: bool) -> Iterator[Replica]:
        return (replica for replica in self._allowed(exact=exact) if replica.usable)

    def _doubtful(self, *, exact: bool, tried: set[str]) -> Iterator[Replica]:
        """Those that were not usable when they were last checked, and were not tried for this request yet."""
        return (replica for replica in self._allowed(exact=exact) if replica.is_doubtful and replica.name not in tried)

    def _allowed(self, *, exact: bool) -> Iterator[Replica]:
        self._compare_fingerprints()
        for name, replica in self.replicas.items():
            if name not in self._drained and not (exact and name in self._excluded):
                yield replica

    def _compare_fingerprints(self) -> None:
        """Exclude replicas whose fingerprint differs from the first known one. That one stays the reference while its
        replicas are unloaded or down, but not when all of them are drained, as for an upgrade.
        """
        for name, replica in self.replicas.items():
            if replica.info is not None and replica.info.fingerprint:
                self._fingerprints[name] = replica.info.fingerprint
        current = [mark for name, mark in self._fingerprints.items() if name not in self._drained]
        if current and self._reference not in current:
            self._reference = current[0]
        differing = {
            name: f"its fingerprint is {mark}, not {self._reference}: different model, build or flags"
            for name, mark in self._fingerprints.items()
            if mark != self._reference
        }
        write = _log.warning if self._deterministic else _log.info
        for name in differing.keys() - self._excluded.keys():
            write("replica differs", model=self.name, replica=name, reason=differing[name])
        self._excluded = differing

    def _unusable_reasons(self) -> str:
        reasons = []
        for status in self.status():
            reason = "drained" if status.drained else status.failure or status.excluded or status.health
            reasons.append(f"{status.name} ({reason})")
        return ", ".join(reasons)

    def _forget_restarted(self) -> None:
        for name, replica in self.replicas.items():
            if replica.epoch != self._epochs[name]:
                self._epochs[name] = replica.epoch
                self._router.forget(name)


class ReplicaDispatch:
    """The dispatch of one request. Remembers the replicas that failed."""

    def __init__(self, replicas: ReplicaSet, request: GenerateRequest | None) -> None:
        self._replicas = replicas
        self._request = request
        self._chain = chain_for(request)
        self._tried: set[str] = set()
        self._retries = Retries(max(2, len(replicas.replicas)), 1 if request is None else MOST_RESTARTS)
        self.replica = ""
        """The current replica."""

    async def acquire(self) -> Backend:
        exact = self._replicas.exact(self._request)
        while True:
            replica = self._replicas.choose(self._request, self._chain, self._tried, only=self._retries.only)
            self.replica = replica.name
            try:  # an error of `choose` concerns all replicas
                backend = await replica.acquire(exact=exact)
            except PaddockError as error:
                if not self.should_retry(error):
                    raise
                continue
            if exact and self._replicas.is_excluded(replica):
                self._tried.add(replica.name)
                continue
            self._replicas.began(replica, self._chain, self._request)
            return backend

    def should_retry(self, error: PaddockError) -> bool:
        """Whether to retry after this failure, which happened before the first delta."""
        self._tried.add(self.replica)
        if not self._retries.allow(error, self.replica):
            return False
        self._replicas.retried[self.replica] += 1
        _log.warning(
            "retrying on the same replica" if self._retries.only else "retrying on another replica",
            model=self._replicas.name,
            replica=self.replica,
            error=error.message,
        )
        return True
