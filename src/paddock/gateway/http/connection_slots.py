"""Limits on open connections and on running requests. Pure: these count and decide, others act.

`ConnectionTable` counts connections before authentication. `RequestTable` counts requests when their key is known.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from paddock.config import ServerSettings
from paddock.errors import RateLimitExceeded, TooManyConnections

REQUEST_ENTRY: Final = "paddock.request_entry"
"""The key in the request scope of its `RequestEntry`."""
Use = Literal["request", "watch", "health", "admin"]
"""`watch`: an endless stream of events about the server. `health`: also `/metrics`. `admin`: routes for admins only."""
_RETRY: Final = 1.0
_MOST_RESERVED: Final = 64
Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of the settings, and those that are derived from them."""

    settings: ServerSettings
    connections: int
    per_address: int
    per_key: int

    @classmethod
    def of(cls, settings: ServerSettings, possible: int | None = None) -> ConnectionLimits:
        """`possible`: the number of connections that the process can open, if known."""
        most = min(settings.max_connections, possible or settings.max_connections)
        half = max(1, most // 2)
        per_address, per_key = settings.max_connections_per_address, settings.max_connections_per_key
        return cls(settings, most, min(per_address or half, most), min(per_key or half, most))

    @property
    def reserved(self) -> int:
        """Requests that only admins and health checks may start; half of them only admins."""
        return min(_MOST_RESERVED, max(1, self.connections // 16)) if self.connections > 1 else 0


class RequestTable:
    """Running requests. Each owner has a limit, and all together leave the reserved ones free."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.used: Counter[Use] = Counter()
        self._owners: Counter[tuple[str, str]] = Counter()

    def take(self, use: Use, owner: str) -> None:
        """Count a request, or raise. `owner` is the name of a key or, without keys, an address."""
        most, reserved = self.limits.connections, self.limits.reserved
        watchers = self.limits.settings.max_watchers_per_key
        if use == "watch" and self._owners["watch", owner] >= watchers:
            raise RateLimitExceeded(
                f"this key or address has {watchers} streams of /models/sse and /live, "
                "which is the limit (server.max_watchers_per_key)",
                retry_after=_RETRY,
            )
        if use in ("request", "watch") and self._owners["all", owner] >= self.limits.per_key:
            raise RateLimitExceeded(
                f"this key or address has {self.limits.per_key} connections with a running request, which is the limit "
                "(server.max_connections_per_key)",
                retry_after=_RETRY,
            )
        free_for = {"admin": most, "health": most - reserved // 2}.get(use, most - reserved)
        if self.used.total() >= free_for:
            raise TooManyConnections(
                f"{free_for} requests are running, which is the limit (server.max_connections)", retry_after=_RETRY
            )
        self.used[use] += 1
        self._owners["all", owner] += use in ("request", "watch")
        self._owners["watch", owner] += use == "watch"

    def release(self, use: Use, owner: str) -> None:
        self.used[use] -= 1
        for what, counted in (("all", use in ("request", "watch")), ("watch", use == "watch")):
            self._owners[what, owner] -= counted
            if not self._owners[what, owner]:
                del self._owners[what, owner]


class RequestEntry:
    """The entry of one request, which counts once it takes it. `on_key` is called when its key is known."""

    def __init__(self, table: RequestTable, on_key: Callable[[], None] = lambda: None) -> None:
        self._table = table
        self._on_key = on_key
        self._taken: tuple[Use, str] | None = None

    def take(self, use: Use, owner: str, *, has_key: bool) -> None:
        """Raises `TooManyConnections` or `RateLimitExceeded`."""
        assert self._taken is None, "a request is counted once"
        self._table.take(use, owner)
        self._taken = (use, owner)
        if has_key:
            self._on_key()

    def release(self) -> None:
        """May be called more than once."""
        if self._taken is not None:
            self._table.release(*self._taken)
            self._taken = None


class ConnectionTable(Generic[Member]):
    """Open connections by address. Idle connections are closed when there are too many.

    A connection whose request has an API key does not count for its address: many users may share a proxy.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self.most = most
        self.per_address = per_address
        self._of: dict[Member, str] = {}
        self._counted: dict[str, dict[Member, None]] = {}
        self._idle: dict[str, dict[Member, None]] = {}
        """The connections that were idle longest are first."""

    def __len__(self) -> int:
        return len(self._of)

    def add(self, member: Member, address: str) -> Member | None:
        """Add a new connection, which is idle. Returns the connection to close for it.

        Raises `TooManyConnections` if none can be closed.
        """
        evicted: Member | None = None
        if len(self._counted.get(address, ())) >= self.per_address:
            evicted = next(iter(self._idle.get(address, ())), None)
            if evicted is None:
                raise TooManyConnections(
                    f"{self.per_address} connections are open from this address, which is the limit", retry_after=_RETRY
                )
        elif len(self._of) >= self.most:
            # From the address with the most: a client that opens many cannot push out the others.
            longest = max(self._idle.values(), key=len, default=None)
            if longest is None:
                raise TooManyConnections(
                    f"all {self.most} connections are in use (server.max_connections)", retry_after=_RETRY
                )
            evicted = next(iter(longest))
        if evicted is not None:
            self.leave(evicted)
        self._of[member] = address
        self.mark_idle(member)
        return evicted

    def mark_idle(self, member: Member) -> None:
        """The connection has no running request."""
        if (address := self._of.get(member)) is not None:
            self._counted.setdefault(address, {})[member] = None
            self._idle.setdefault(address, {})[member] = None

    def mark_busy(self, member: Member) -> None:
        """The connection has a running request."""
        self._remove(self._idle, member)

    def mark_authenticated(self, member: Member) -> None:
        """The running request has an API key."""
        self._remove(self._counted, member)

    def leave(self, member: Member) -> None:
        """May be called more than once."""
        self._remove(self._idle, member)
        self._remove(self._counted, member)
        self._of.pop(member, None)

    def _remove(self, by_address: dict[str, dict[Member, None]], member: Member) -> None:
        address = self._of.get(member)
        if address is not None and address in by_address:
            by_address[address].pop(member, None)
            if not by_address[address]:
                del by_address[address]


def network_of(host: str) -> str:
    """The unit of the limits per address: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
