"""Counts wrong API keys by address, to slow down guessing. Pure: `now` is passed in."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from paddock.gateway.auth.limits import Bucket
from paddock.gateway.http.connection_slots import network_of

_PER_MINUTE = 10
"""Wrong keys in a row before an address has to wait, and how many of them are forgotten in a minute."""
_MOST_ADDRESSES = 4096
Value = TypeVar("Value")


class FailedKeys:
    """A token bucket for each network. The table is bounded: the network that was idle longest is removed first. A
    correct key is never refused, so an attacker cannot lock out others behind the same address.
    """

    def __init__(self, *, per_minute: int = _PER_MINUTE, most: int = _MOST_ADDRESSES) -> None:
        self._per_minute = per_minute
        self._most = most
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._trusted: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, address: str, now: float) -> float:
        """Seconds until one more wrong key is answered with a 401; 0: now."""
        bucket = self._buckets.get(network_of(address))
        return bucket.seconds_until(1, now) if bucket is not None else 0.0

    def count(self, address: str, now: float) -> None:
        network = network_of(address)
        bucket = self._buckets.get(network) or Bucket(self._per_minute, now)
        bucket.take(1, now)
        self._remember(self._buckets, network, bucket)

    def trust(self, address: str) -> None:
        """Remember that a correct key came from this address."""
        self._remember(self._trusted, network_of(address), None)

    def is_trusted(self, address: str) -> bool:
        return network_of(address) in self._trusted

    def _remember(self, table: OrderedDict[str, Value], network: str, value: Value) -> None:
        table[network] = value
        table.move_to_end(network)
        while len(table) > self._most:
            table.popitem(last=False)
