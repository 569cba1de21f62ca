"""Host names, addresses and the paths of unix sockets."""

from __future__ import annotations

import ipaddress
from urllib.parse import quote

_EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # addresses to listen on, not to connect to


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this host."""
    if is_address(host):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return is_socket_path(host) or host == "localhost" or host.endswith(".localhost")


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_socket_path(host: str) -> bool:
    """Whether a host is the path of a unix socket. As in llama-server, a name that ends with .sock is one too."""
    return host.endswith(".sock") or host.startswith(("/", "./", "../", "~/"))


def address_url(host: str, port: int, *, tls: bool) -> str:
    """The URL of a server that listens on this host: `http://127.0.0.1:8080`, `http://[::1]:80`, `unix:///a.sock`."""
    if is_socket_path(host):
        return f"unix://{quote(host)}"
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def reachable(host: str) -> str:
    """The host to connect to for a server that listens on this one."""
    return _EVERY.get(host, host)
