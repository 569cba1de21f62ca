"""The sockets that the server listens on: TCP addresses and unix sockets."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paddock.config import ServerSettings
from paddock.errors import StartupError
from paddock.hosts import address_url, is_socket_path

BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True)
class Listener:
    sock: socket.socket
    url: str


@contextmanager
def listening(settings: ServerSettings) -> Iterator[list[Listener]]:
    """Listen on all addresses of the settings. At the end the sockets are closed and the files of unix sockets removed.

    Raises `StartupError` if one of them cannot be used: a port in use is then one clear error message.
    """
    tls = settings.ssl_cert_file is not None
    tcp = [host for host in settings.hosts if not is_socket_path(host)]
    port = settings.port
    with ExitStack() as stack:
        found = []
        for host in settings.hosts:
            if is_socket_path(host):
                sock = stack.enter_context(_listening_on_path(Path(host), int(settings.socket_mode, 8)))
                url = address_url(host, port, tls=tls)
            else:
                sock = stack.enter_context(_bound(host, port, settings.reuse_port, only_v6=len(tcp) > 1))
                # Port 0 is one free port for all addresses.
                address, port = sock.getsockname()[:2]
                url = address_url(address, port, tls=tls)
            found.append(Listener(sock, url))
        if (second := settings.ollama_port) is not None:
            if not tcp:
                raise StartupError("ollama_port (--ollama-port) needs an address to listen on, not only a unix socket")
            if second == port:
                raise StartupError(f"ollama_port (--ollama-port) and port (--port) are both {port}")
            for host in tcp:
                sock = stack.enter_context(_bound(host, second, settings.reuse_port, only_v6=len(tcp) > 1))
                found.append(Listener(sock, address_url(sock.getsockname()[0], second, tls=tls)))
        yield found


def _bound(host: str, port: int, reuse_port: bool, *, only_v6: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartupError(f"the host {host!r} cannot be resolved: {error.strerror}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6 and only_v6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        # Every connection inherits it: detects peers that vanished.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Listen now, so that another process cannot bind the port.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise StartupError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return sock


@contextmanager
def _listening_on_path(path: Path, mode: int) -> Iterator[socket.socket]:
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX) as sock:
        before = os.umask(0o177)  # no other user may connect before the mode is set
        try:
            sock.bind(str(path))
            path.chmod(mode)
            sock.listen(BACKLOG)
            ours = path.stat()
        except OSError as error:
            raise StartupError(f"cannot listen on the unix socket {path}: {error.strerror or error}") from None
        finally:
            os.umask(before)
        try:
            yield sock
        finally:
            with suppress(OSError):  # removed already
                if os.path.samestat(path.stat(), ours):
                    path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that was killed. Raises `StartupError` for anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StartupError(f"cannot listen on the unix socket {path}: the file exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except OSError as error:
        raise StartupError(f"cannot listen on the unix socket {path}: {error.strerror or error}") from None
    raise StartupError(f"cannot listen on the unix socket {path}: another server listens on it")
