"""Exit status 0 if the server in this container is healthy. Standard library only; no curl in the image.

With --alive any response is healthy: 503 means that the only model is loading, which must not cause a restart. Address
and TLS come from the same sources as for the server: its flags, its environment, and its configuration file.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

WAIT = 5
_INITS = {"catatonit", "docker-init", "dumb-init", "tini"}
_EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (nothing listens here)


def main() -> None:
    flags = command_of_server()
    host, port, tls = listens_on(flags, os.environ)
    path = f"{setting('api_prefix', flags, os.environ).rstrip('/')}/health"
    connection = HTTPConnection(host, port, timeout=WAIT)
    if host.endswith(".sock") or "/" in host:
        connection = HTTPConnection("localhost", timeout=WAIT)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(WAIT)
    elif tls:
        itself = ssl.create_default_context()
        itself.check_hostname, itself.verify_mode = False, ssl.CERT_NONE  # its certificate is for another name
        connection = HTTPSConnection(host, port, timeout=WAIT, context=itself)
    try:
        if connection.sock is not None:
            connection.sock.connect(host)
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        sys.exit(f"{path} does not answer on {host} port {port}: {error}")
    if status != 200 and "--alive" not in sys.argv:
        sys.exit(f"{path} answers {status}")


def listens_on(flags: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int, bool]:
    """Host, port and whether the server uses TLS. Of several hosts the first one. A path is a unix socket."""
    host = setting("host", flags, environment).split(",")[0].strip()
    return (
        _EVERYWHERE.get(host, host),
        int(setting("port", flags, environment) or 8080),
        bool(setting("ssl_cert_file", flags, environment)),
    )


def setting(name: str, flags: Sequence[str], environment: Mapping[str, str]) -> str:
    """A setting of the server. Flags override the environment, which overrides the file."""
    file = _flag(flags, "--config") or environment.get("PADDOCK_CONFIG")
    said = _read(Path(file).expanduser()) if file else {}
    variables = (f"LLAMA_ARG_{name.upper()}", f"PADDOCK_SERVER__{name.upper()}")
    given = [_flag(flags, f"--{name.replace('_', '-')}"), *map(environment.get, variables), said.get(name)]
    return str(next(filter(None, given), ""))


def command_of_server(processes: Path = Path("/proc")) -> list[str]:
    """The words after `paddock serve` of the server in this container: its first process, or one that an init has
    started. None outside of a container, where there may be several servers.
    """
    first = _words(processes / "1")
    if first and Path(first[0]).name not in _INITS:
        return _after_serve(first)
    others = sorted(int(place.name) for place in processes.glob("[0-9]*"))
    return next(filter(None, (_after_serve(_words(processes / str(number))) for number in others)), [])


def _words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []  # it has ended, or is not readable


def _after_serve(words: Sequence[str]) -> list[str]:
    for index, word in enumerate(words[1:], 1):
        if word == "serve" and Path(words[index - 1]).name == "paddock":
            return list(words[index + 1 :])
    return []


def _flag(words: Sequence[str], name: str) -> str | None:
    """The last value counts."""
    value = None
    for index, word in enumerate(words):
        if word == name and index + 1 < len(words):
            value = words[index + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))["server"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    main()
