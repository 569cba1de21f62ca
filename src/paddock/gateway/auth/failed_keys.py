"""Counts wrong API keys by address, to slow down guessing. Pure: `now` is passed in."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

_ALLOWED = 10
"""Wrong keys in a row before an address has to wait."""
_PER_SECOND = 1 / 6
"""How fast they are forgotten: one every six seconds."""
_MOST_ADDRESSES = 4096
_IPV6_PREFIX = 64
"""A customer has a whole IPv6 network of this prefix length."""


class FailedKeys:
    """A leaky bucket for each address. The table is bounded: the address that was idle longest is removed first. A
    correct key is never refused, so an attacker cannot lock out others behind the same address.
    """

    def __init__(
        self, *, allowed: int = _ALLOWED, per_second: float = _PER_SECOND, most: int = _MOST_ADDRESSES
    ) -> None:
        self._allowed = allowed
        self._per_second = per_second
        self._most = most
        self._counted: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The level of each network, and the time at which it was set."""
        self._trusted: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counted)

    def wait(self, address: str, now: float) -> float:
        """Seconds until one more wrong key is answered with a 401; 0: now."""
        excess = self._level(_network(address), now) - (self._allowed - 1)
        return max(0.0, excess / self._per_second)

    def count(self, address: str, now: float) -> None:
        network = _network(address)
        level = self._level(network, now) + 1
        self._counted[network] = level, now
        self._counted.move_to_end(network)
        while len(self._counted) > self._most:
            self._counted.popitem(last=False)

    def trust(self, address: str) -> None:
        """Remember that a correct key came from this address."""
        network = _network(address)
        self._trusted[network] = None
        self._trusted.move_to_end(network)
        while len(self._trusted) > self._most:
            self._trusted.popitem(last=False)

    def is_trusted(self, address: str) -> bool:
        return _network(address) in self._trusted

    def _level(self, network: str, now: float) -> float:
        level, at = self._counted.get(network, (0.0, now))
        return max(0.0, level - max(0.0, now - at) * self._per_second)


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
    return str(parsed)
