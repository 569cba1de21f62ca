"""Checks of the server: its port, who can reach it, the files it needs, and its systemd service."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from paddock.cli.doctor.finding import Finding, check_folder
from paddock.hosts import is_loopback, is_socket_path

if TYPE_CHECKING:
    from paddock.config import ServerSettings

_SHORTEST_KEY = 16
_PROPERTIES = ("LoadState", "ActiveState", "SubState", "NRestarts", "Result", "UnitFileState")
_CAUSES = {
    "oom-kill": "the kernel killed it because memory ran out",
    "watchdog": "it did not answer systemd's watchdog",
    "start-limit-hit": "it failed to start too often",
    "timeout": "it did not start or stop in time",
    "exit-code": "it exited with an error",
    "signal": "it was killed",
    "core-dump": "it crashed",
}


# ── port ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that listens on the port. Only root can see processes of other users."""

    pid: int | None = None
    command: tuple[str, ...] = ()

    @property
    def is_paddock(self) -> bool:
        return "serve" in self.command and any(word.rsplit("/", 1)[-1] == "paddock" for word in self.command)


def check_port(host: str, port: int, error: OSError | None, holder: Holder | None = None) -> Finding:
    """`error` is the result of an attempt to bind the port."""
    where = f"{host} port {port}"
    if error is None:
        return Finding("ok", "port", f"{where} is free" if port else f"{host} will use any free port")
    if isinstance(error, socket.gaierror):
        text = f"the host {host!r} cannot be resolved: {error.strerror}"
        cure = "set server.host to an address of this machine, or 0.0.0.0 for all of them"
        return Finding("problem", "port", text, cure)
    match error.errno:
        case errno.EADDRINUSE:
            return _port_in_use(where, port, holder or Holder())
        case errno.EACCES:
            cure = "choose a port above 1023 (server.port), and put nginx in front of it"
            return Finding("problem", "port", f"only root may listen on {where}", cure)
        case errno.EADDRNOTAVAIL:
            cure = "set server.host to one that `ip address` shows, or to 0.0.0.0"
            return Finding("problem", "port", f"{host} is not an address of this machine", cure)
        case _:
            text = f"cannot listen on {where}: {error.strerror}"
            return Finding("problem", "port", text, "choose another server.port")


def _port_in_use(where: str, port: int, holder: Holder) -> Finding:
    if holder.pid is None:
        cure = f"find it with: sudo ss -tlnp | grep :{port}; or choose another server.port"
        return Finding("problem", "port", f"{where} is already in use by a process of another user", cure)
    process = f"{' '.join(holder.command)[:100] or 'a process'} (pid {holder.pid})"
    if holder.is_paddock:
        return Finding("ok", "port", f"{where} is served already by {process}")
    cure = f"end it (kill {holder.pid}), or choose another server.port"
    return Finding("problem", "port", f"{where} is already in use by {process}", cure)


def examine_port(host: str, port: int) -> Finding:
    if is_socket_path(host):
        folder = Path(host).parent
        if not os.access(folder, os.W_OK | os.X_OK):
            return Finding("problem", "port", f"no socket can be created in {folder}", "create it, or change its owner")
        return Finding("ok", "port", f"the unix socket {host} can be created")
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


# ── exposure ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_exposure(host: str, *, keys: bool, tls: bool) -> Finding:
    if is_loopback(host):
        return Finding("ok", "exposure", "only this machine can reach the server")
    if not keys:
        text = f"no API key is set: everybody who can reach {host} may use, unload and reload models"
        cure = "set an API key (server.api_key_file), or server.host to 127.0.0.1 behind a proxy"
        return Finding("warning", "exposure", text, cure)
    if not tls:
        text = "keys and conversations cross the network in clear text"
        cure = "set ssl_cert_file and ssl_key_file, or use a proxy with TLS on this machine (deploy/nginx)"
        return Finding("warning", "exposure", text, cure)
    return Finding("ok", "exposure", "other machines can reach the server with a key, over TLS")


def check_root(user_id: int) -> Finding | None:
    if user_id != 0:
        return None
    text = "this is root: code that breaks out of a worker can do anything on this machine"
    cure = "run it as another user: `paddock service install --system` creates one, and the container image has one"
    return Finding("warning", "user", text, cure)


def check_metrics(host: str, *, metrics: bool, metrics_key: bool) -> Finding | None:
    if is_loopback(host) or not metrics or metrics_key:
        return None
    text = f"everybody who can reach {host} may read /metrics, which shows models, keys and their usage"
    cure = "set server.metrics_key to true, block /metrics at the proxy, or turn it off with --no-metrics"
    return Finding("warning", "metrics", text, cure)


def check_keys(keys: Iterable[str]) -> Finding | None:
    """`keys` are keys in clear text. A hash does not show how long its key is."""
    lengths = sorted(map(len, keys))
    short = [length for length in lengths if length < _SHORTEST_KEY]
    if not short:
        return None
    text = (
        f"{len(short)} of {len(lengths)} API keys {'is' if len(short) == 1 else 'are'} shorter than {_SHORTEST_KEY} "
        f"characters and can be guessed; the shortest has {short[0]}"
    )
    return Finding("warning", "keys", text, "make a long one: `paddock keys new NAME`, or `openssl rand -hex 32`")


def check_cors(origins: list[str], *, keys: bool) -> Finding:
    if "*" in origins and not keys:
        cure = "list the pages' origins in cors_origins, or set an API key"
        return Finding("warning", "cors", "any page in a browser on this machine may use the server", cure)
    text = f"web pages that may use the server: {', '.join(origins) or 'only its own'}"
    return Finding("ok", "cors", text, "add the origins of other pages to cors_origins")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_secret(file: Path, what: str) -> Iterator[Finding]:
    """A file that the server must be able to read, and other users must not."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        cure = "correct the path, or create the file"
        yield Finding("problem", "permissions", f"{what} {file}: {error.strerror}", cure)
        return
    if not os.access(file, os.R_OK):
        cure = f"give it to the server's user: chown USER {file}"
        yield Finding("problem", "permissions", f"{what} {file} cannot be read by this user", cure)
    elif mode & (stat.S_IROTH | stat.S_IWOTH):
        yield Finding("warning", "permissions", f"{what} {file} can be read by all users", f"chmod 600 {file}")
    else:
        yield Finding("ok", "permissions", f"{what} {file} is closed to other users")


def check_tls(certificate: Path | None, key: Path | None) -> Iterator[Finding]:
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        yield Finding("problem", "tls", "TLS needs both ssl_key_file and ssl_cert_file", "set the other one too")
        return
    yield from check_secret(key, "the TLS key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        text = f"{certificate} and {key} are not a valid certificate and key: {error.reason or error}"
        yield Finding("problem", "tls", text, "both must be PEM and belong together, the key without a password")
    except OSError as error:
        yield Finding("problem", "tls", f"{certificate} or {key} cannot be read: {error.strerror}", "correct the path")
    else:
        yield Finding("ok", "tls", f"{certificate} and its key belong together")


def examine_server(settings: ServerSettings, file: Path | None) -> Iterator[Finding]:
    has_keys = settings.has_keys
    for host in settings.hosts:
        yield examine_port(host, settings.port)
    exposed = next((host for host in settings.hosts if not is_loopback(host)), settings.hosts[0])
    yield check_exposure(exposed, keys=has_keys, tls=settings.ssl_cert_file is not None)
    optional = (
        check_root(os.geteuid()),
        check_metrics(exposed, metrics=settings.metrics, metrics_key=settings.metrics_key),
        check_keys(_clear_text_keys(settings)),
    )
    yield from filter(None, optional)
    yield check_cors(settings.cors_origins, keys=has_keys)
    yield from check_tls(settings.ssl_cert_file, settings.ssl_key_file)
    if settings.slot_save_path is not None:
        yield check_folder(settings.slot_save_path, "the folder for saved slots", "permissions", writable=True)
    if settings.api_key_file is not None:
        yield from check_secret(settings.api_key_file, "the key file")
    in_file = settings.api_keys or any(key.key is not None for key in settings.keys.values())
    if in_file and file is not None:
        yield from check_secret(file, "the configuration, which holds keys,")


def _clear_text_keys(settings: ServerSettings) -> list[str]:
    keys = [*settings.api_keys, *(key.key for key in settings.keys.values() if key.key is not None)]
    if settings.api_key_file is not None:
        try:
            keys += settings.api_key_file.read_text("utf-8").split()
        except (OSError, UnicodeDecodeError):
            pass  # check_secret reports it
    return [key for key in keys if not key.startswith("sha256:")]


# ── service ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_service(name: str, shown: Mapping[str, str], *, system: bool) -> Finding | None:
    """`shown` is the output of `systemctl show`. None if the unit does not exist."""
    if shown.get("LoadState", "not-found") in ("not-found", "masked"):
        return None
    scope = "" if system else "--user "
    log = f"journalctl {scope}-u {name} -n 50"
    state, count = shown.get("ActiveState", ""), shown.get("NRestarts", "")
    restarts = int(count) if count.isdigit() else 0
    cause = _CAUSES.get(shown.get("Result", ""), "")
    because = f": {cause}" if cause else ""
    if state == "failed":
        cure = f"its log shows why: {log}; then systemctl {scope}restart {name}"
        return Finding("problem", "service", f"{name} has failed{because}", cure)
    if state in ("activating", "deactivating") and restarts:
        text = f"{name} keeps restarting ({restarts} times){because}"
        cure = f"its log shows why: {log}; the usual causes are memory, the configuration and the model"
        return Finding("problem", "service", text, cure)
    if restarts:
        return Finding("warning", "service", f"{name} is {state}, and was restarted {restarts} times", f"see {log}")
    if state != "active":
        return Finding("warning", "service", f"{name} is {state}", f"systemctl {scope}start {name}")
    if shown.get("UnitFileState") == "disabled":
        text = f"{name} runs, but does not start when the machine starts"
        return Finding("warning", "service", text, f"systemctl {scope}enable {name}")
    return Finding("ok", "service", f"{name} is running")


def examine_service(name: str) -> Iterator[Finding]:
    found = [check_service(name, _systemctl_show(name, system=system), system=system) for system in (False, True)]
    yield from filter(None, found)
    if not any(found):
        yield Finding("ok", "service", f"{name} is not installed as a service", "paddock service install")


def _systemctl_show(name: str, *, system: bool) -> dict[str, str]:
    """Empty if there is no systemd, or none that runs."""
    program = shutil.which("systemctl")
    if program is None:
        return {}
    scope = [] if system else ["--user"]
    command = [program, *scope, "show", f"--property={','.join(_PROPERTIES)}", f"{name}.service"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    if done.returncode != 0:
        return {}
    return {key: value for key, _, value in (line.partition("=") for line in done.stdout.splitlines())}
