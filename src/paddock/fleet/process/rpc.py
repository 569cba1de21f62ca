"""Finds the RPC servers of a model before its worker starts: libllama would end the process without them."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from paddock.errors import ModelLoadFailed

_WAIT = 5.0


def find_rpc_servers(servers: Sequence[str]) -> list[str]:
    """Their numeric addresses, since a worker in its sandbox cannot resolve names. Takes time if one does not answer.

    Raises `ModelLoadFailed` that names the server.
    """
    return [_find(server) for server in servers]


def _find(server: str) -> str:
    host, _, port = server.rpartition(":")
    try:
        address = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4]
        with socket.create_connection((str(address[0]), int(port)), timeout=_WAIT):
            return f"{address[0]}:{port}"
    except OSError as error:
        raise ModelLoadFailed(f"cannot connect to the RPC server {server}: {error.strerror or error}") from None
