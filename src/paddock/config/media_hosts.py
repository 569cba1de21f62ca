"""Which hosts and addresses images and audio may be downloaded from. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address

_NAT64: Final = IPv6Network("64:ff9b::/96")
_USUAL_PORTS: Final = {"http": 80, "https": 443}
_ENTRY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:/@?#]+|[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*)(?::(\d{1,5}|\*))?")


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry: `example.org`, `*.example.org`, `*`, each with `:PORT` or `:*`."""

    name: str
    port: int | None
    """None: the usual one of the scheme. -1: any."""

    @classmethod
    def parse(cls, entry: str) -> HostRule:
        """Raises `ValueError`."""
        match = _ENTRY.fullmatch(entry.strip().lower())
        if match is None:
            raise ValueError(f"{entry!r} is not a host: use example.org, *.example.org, HOST:PORT or *")
        port = None if match[2] is None else -1 if match[2] == "*" else int(match[2])
        if port is not None and not -1 <= port <= 65535:
            raise ValueError(f"{entry!r} has no valid port")
        name = _plain(match[1])
        if "*" in name and not re.fullmatch(r"\*(\.[^*]+)?", name):
            raise ValueError(f"{entry!r} is not a host: * stands for all names, or for the part before a name")
        return cls(name, port)

    def allows(self, scheme: str, host: str, port: int) -> bool:
        wanted = _USUAL_PORTS.get(scheme) if self.port is None else self.port
        if wanted not in (-1, port):
            return False
        if self.name == "*":
            return True
        return host.endswith(self.name[1:]) if self.name.startswith("*.") else host == self.name

    @property
    def address(self) -> Address | None:
        """Itself, if it is an address and not a name."""
        return address_of(self.name)


@dataclass(frozen=True, slots=True)
class HostRules:
    rules: tuple[HostRule, ...]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> HostRules:
        """Raises `ValueError`."""
        return cls(tuple(map(HostRule.parse, entries)))

    def __bool__(self) -> bool:
        return bool(self.rules)

    def allows_host(self, scheme: str, host: str, port: int) -> bool:
        return any(rule.allows(scheme, _plain(host), port) for rule in self.rules)

    def allows_address(self, scheme: str, host: str, port: int, address: str) -> bool:
        """Whether a connection to this address of the host is allowed: to public ones, and to one that an entry
        names itself.
        """
        found = address_of(address)
        if found is None:
            return False
        if is_public(found):
            return True
        named = (rule for rule in self.rules if rule.address is not None and rule.address == address_of(host))
        return found == address_of(host) and any(rule.allows(scheme, _plain(host), port) for rule in named)


def address_of(host: str) -> Address | None:
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether it is an ordinary address of the Internet, and so is an IPv4 address inside it."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    if address.is_multicast or not address.is_global or address.is_reserved:
        return False
    if isinstance(address, IPv4Address):
        return True
    if address.is_site_local:
        return False
    inside: list[IPv4Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    return all(is_public(one) for one in inside if one is not None)


def _plain(host: str) -> str:
    host = host.lower().rstrip(".")
    address = address_of(host)
    return host if address is None else str(address)
