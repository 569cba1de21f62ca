"""Host names and addresses."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this host."""
    if is_address(host):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
