"""Who may have a connection, and who may have a request under way. Pure: these count and decide, others act.

`Crowd` is about connections, before anybody knows whose they are. `Places` is about requests, once their key is known.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from paddock.errors import RateLimitExceeded, TooManyConnections

PLACE: Final = "paddock.place"
"""Where the scope of a request has its `Place`."""
Use = Literal["request", "watch", "health", "admin"]
"""`watch`: an endless stream of events about the server. `health`: also `/metrics`. `admin`: routes for admins only."""
_RETRY: Final = 1.0
_MOST_RESERVED: Final = 64
Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class PlaceLimits:
    connections: int
    per_key: int
    watchers_per_key: int

    @property
    def reserved(self) -> int:
        """Places for admins and health checks only; half of them for admins only."""
        return min(_MOST_RESERVED, max(1, self.connections // 16)) if self.connections > 1 else 0


class Places:
    """Requests under way. Those of one owner are bounded, and all of them leave the reserved places free."""

    def __init__(self, limits: PlaceLimits) -> None:
        self.limits = limits
        self.used: Counter[Use] = Counter()
        self._owners: Counter[tuple[str, str]] = Counter()

    def take(self, use: Use, owner: str) -> None:
        """Raises, and then nothing is counted. `owner` is the name of a key or, without keys, an address."""
        most, reserved = self.limits.connections, self.limits.reserved
        if use == "watch" and self._owners["watch", owner] >= self.limits.watchers_per_key:
            raise RateLimitExceeded(
                f"{self.limits.watchers_per_key} streams of /models/sse and /live are open for this key or address, "
                "which is the limit (server.max_watchers_per_key)",
                retry_after=_RETRY,
            )
        if use in ("request", "watch") and self._owners["all", owner] >= self.limits.per_key:
            raise RateLimitExceeded(
                f"{self.limits.per_key} connections of this key or address have a request under way, which is the "
                "limit (server.max_connections_per_key)",
                retry_after=_RETRY,
            )
        free_for = {"admin": most, "health": most - reserved // 2}.get(use, most - reserved)
        if self.used.total() >= free_for:
            raise TooManyConnections(f"{free_for} requests are under way, which is the limit", retry_after=_RETRY)
        self.used[use] += 1
        self._owners["all", owner] += use in ("request", "watch")
        self._owners["watch", owner] += use == "watch"

    def give_back(self, use: Use, owner: str) -> None:
        self.used[use] -= 1
        for what, counted in (("all", use in ("request", "watch")), ("watch", use == "watch")):
            self._owners[what, owner] -= counted
            if not self._owners[what, owner]:
                del self._owners[what, owner]


class Place:
    """The place of one request, which has none until it takes one. `on_key` is called when its key is known."""

    def __init__(self, places: Places, on_key: Callable[[], None] = lambda: None) -> None:
        self._places = places
        self._on_key = on_key
        self._taken: tuple[Use, str] | None = None

    def take(self, use: Use, owner: str, *, has_key: bool) -> None:
        """Raises `TooManyConnections` or `RateLimitExceeded`."""
        assert self._taken is None, "a request takes one place"
        self._places.take(use, owner)
        self._taken = (use, owner)
        if has_key:
            self._on_key()

    def release(self) -> None:
        """May be called more than once."""
        if self._taken is not None:
            self._places.give_back(*self._taken)
            self._taken = None


class Crowd(Generic[Member]):
    """Open connections by address. Quiet ones, which have no request under way, make room when there are too many.

    A connection whose request has shown a key does not count for its address: many users may share a proxy.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self.most = most
        self.per_address = per_address
        self._of: dict[Member, str] = {}
        self._counted: dict[str, dict[Member, None]] = {}
        self._quiet: dict[str, dict[Member, None]] = {}
        """Those that were quiet for the longest time are first."""

    def __len__(self) -> int:
        return len(self._of)

    def arrive(self, member: Member, address: str) -> Member | None:
        """Count a new connection, which is quiet. Returns the one that must leave for it.

        Raises `TooManyConnections`, and then it is not counted, if none can leave.
        """
        leaving: Member | None = None
        if len(self._counted.get(address, ())) >= self.per_address:
            leaving = next(iter(self._quiet.get(address, ())), None)
            if leaving is None:
                raise TooManyConnections(
                    f"{self.per_address} connections are open from this address, which is the limit", retry_after=_RETRY
                )
        elif len(self._of) >= self.most:
            # From where most of them come: one who opens many cannot push out another who has just come.
            longest = max(self._quiet.values(), key=len, default=None)
            if longest is None:
                raise TooManyConnections(f"all of {self.most} connections are in use", retry_after=_RETRY)
            leaving = next(iter(longest))
        if leaving is not None:
            self.leave(leaving)
        self._of[member] = address
        self.rest(member)
        return leaving

    def rest(self, member: Member) -> None:
        """It has no request under way."""
        if (address := self._of.get(member)) is not None:
            self._counted.setdefault(address, {})[member] = None
            self._quiet.setdefault(address, {})[member] = None

    def work(self, member: Member) -> None:
        """It has one."""
        self._remove(self._quiet, member)

    def has_key(self, member: Member) -> None:
        """Its request has shown a key, until it rests again."""
        self._remove(self._counted, member)

    def leave(self, member: Member) -> None:
        """May be called more than once."""
        self._remove(self._quiet, member)
        self._remove(self._counted, member)
        self._of.pop(member, None)

    def _remove(self, by_address: dict[str, dict[Member, None]], member: Member) -> None:
        address = self._of.get(member)
        if address is not None and address in by_address:
            by_address[address].pop(member, None)
            if not by_address[address]:
                del by_address[address]


def network_of(host: str) -> str:
    """What counts as one address: of IPv6 the network, since one host has all the addresses of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
