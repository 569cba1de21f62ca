"""Can the server listen where it is told to?"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

import psutil

from paddock.cli.doctor.finding import Finding

_ABOUT = "port"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who listens there. Without root only one's own processes can be told."""

    pid: int | None = None
    command: tuple[str, ...] = ()

    @property
    def is_paddock(self) -> bool:
        return "serve" in self.command and any(word.rsplit("/", 1)[-1] == "paddock" for word in self.command)


def check_port(host: str, port: int, error: OSError | None, holder: Holder | None = None) -> Finding:
    """`error` is what became of an attempt to bind."""
    where = f"{host} port {port}"
    if error is None:
        return Finding("ok", _ABOUT, f"{where} is free" if port else f"{host} will be given a free port")
    if isinstance(error, socket.gaierror):
        return Finding(
            "problem",
            _ABOUT,
            f"the host {host!r} cannot be resolved: {error.strerror}",
            "set server.host to an address of this machine, or 0.0.0.0 for all of them",
        )
    match error.errno:
        case errno.EADDRINUSE:
            return _taken(where, port, holder or Holder())
        case errno.EACCES:
            return Finding(
                "problem",
                _ABOUT,
                f"{where} is open to root only",
                "choose a port above 1023 (server.port), and put nginx in front of it",
            )
        case errno.EADDRNOTAVAIL:
            return Finding(
                "problem",
                _ABOUT,
                f"{host} is no address of this machine",
                "set server.host to one that `ip address` shows, or to 0.0.0.0",
            )
        case _:
            return Finding(
                "problem", _ABOUT, f"cannot listen on {where}: {error.strerror}", "choose another server.port"
            )


def _taken(where: str, port: int, holder: Holder) -> Finding:
    if holder.pid is None:
        return Finding(
            "problem",
            _ABOUT,
            f"{where} is already in use, by a process of another user",
            f"see whose it is with: sudo ss -tlnp | grep :{port}; or choose another server.port",
        )
    who = f"{' '.join(holder.command)[:100] or 'a process'} (pid {holder.pid})"
    if holder.is_paddock:
        return Finding("ok", _ABOUT, f"{where} is served already, by {who}")
    return Finding(
        "problem",
        _ABOUT,
        f"{where} is already in use, by {who}",
        f"end it (kill {holder.pid}), or choose another server.port",
    )


def look_at_port(host: str, port: int) -> Finding:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
    except OSError as error:
        return check_port(host, port, error, _holder(port))
    return check_port(host, port, None)


def _holder(port: int) -> Holder:
    try:
        listening = [
            item.pid
            for item in psutil.net_connections("tcp")
            if item.status == psutil.CONN_LISTEN and item.pid is not None and item.laddr and item.laddr.port == port
        ]
        return Holder(listening[0], tuple(psutil.Process(listening[0]).cmdline())) if listening else Holder()
    except psutil.Error:
        return Holder()
