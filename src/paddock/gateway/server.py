"""From settings to a listening server, and back down without losing an answer that can still be finished."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable

import structlog
import uvicorn
from fastapi import FastAPI

from paddock.config import ServerSettings, Settings
from paddock.errors import PaddockError, StartupError
from paddock.fleet import Fleet, Rules, open_catalogue
from paddock.gateway.app import create_app
from paddock.gateway.auth import Gate
from paddock.gateway.keys import read_keys
from paddock.gateway.notify import Notifier
from paddock.gateway.reloading import Reloader
from paddock.gateway.usage import UsageBook

_log = structlog.get_logger(__name__)

_BACKLOG = 2048


def serve(
    settings: Settings, on_listening: Callable[[str, Fleet], None], reread: Callable[[], Settings] | None = None
) -> None:
    """Run until a signal ends it. `on_listening` is told the address once requests are answered; `reread` reads the
    settings again from where they came.

    Raises `StartupError` before anything has been started.
    """
    catalogue = open_catalogue(settings.model_manager, verbose=settings.server.log_level == "DEBUG")
    for note in catalogue.notes:
        _log.warning(note)
    folder = settings.server.slot_save_path
    if folder is not None and not folder.is_dir():
        raise StartupError(f"the folder for saved slots {folder} does not exist")
    usage = UsageBook()
    gate = Gate(read_keys(settings.server), usage)
    sock = _bind(settings.server)
    fleet = Fleet(catalogue, Rules.of(settings.model_manager))
    reloader = Reloader(fleet, gate, settings, reread or (lambda: settings))
    app = create_app(settings.server, fleet, reloader, gate, usage)
    config = _uvicorn_config(settings.server, app)
    url = f"{'https' if config.is_ssl else 'http'}://{_authority(sock)}"
    notifier = Notifier.from_environment(os.environ)

    def listening() -> None:
        on_listening(url, fleet)
        notifier.ready(listening_on=url)

    with sock:
        server = _Server(config, app, fleet, reloader, notifier, settings.server.shutdown_grace, listening)
        server.run(sockets=[sock])


class _Server(uvicorn.Server):
    """uvicorn, which on a signal stops listening; here the running streams are then given their grace."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        fleet: Fleet,
        reloader: Reloader,
        notifier: Notifier,
        grace: float,
        on_listening: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._app = app
        self._fleet = fleet
        self._reloader = reloader
        self._reloading: asyncio.Task[None] | None = None
        self._notifier = notifier
        self._beating: asyncio.Task[None] | None = None
        self._grace = grace
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._app.state.http_counts.connections = self.server_state.connections
            self._fleet.preload()
            with contextlib.suppress(NotImplementedError):  # there are systems without
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)
            self._beating = asyncio.ensure_future(self._notifier.keep_alive())
            self._on_listening()

    def _on_hangup(self) -> None:
        self._reloading = asyncio.ensure_future(self._reload())

    async def _reload(self) -> None:
        self._notifier.reloading()
        with contextlib.suppress(PaddockError):  # which has been logged
            await self._reloader.reload()
        self._notifier.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._notifier.stopping()
        draining = asyncio.ensure_future(self._drain())
        await super().shutdown(sockets)
        await draining
        # uvicorn raises the signal again at the end; being asked to stop and stopping is a success.
        self._captured_signals.clear()

    async def _drain(self) -> None:
        task = asyncio.ensure_future(self._fleet.drain(self._grace))
        while not task.done() and not self.force_exit:
            await asyncio.wait({task}, timeout=0.05)
        if self.force_exit:  # a second Ctrl-C
            task.cancel()
            await self._fleet.close()


def _uvicorn_config(settings: ServerSettings, app: FastAPI) -> uvicorn.Config:
    if (settings.ssl_key_file is None) != (settings.ssl_cert_file is None):
        raise StartupError("TLS needs both ssl_key_file and ssl_cert_file")
    for file in (settings.ssl_key_file, settings.ssl_cert_file):
        if file is not None and not file.is_file():
            raise StartupError(f"the TLS file {file} does not exist")
    return uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        # The fleet ends the streams when their grace is over; this is for connections that even then do not close.
        timeout_graceful_shutdown=int(settings.shutdown_grace) + 5,
        ssl_keyfile=str(settings.ssl_key_file) if settings.ssl_key_file else None,
        ssl_certfile=str(settings.ssl_cert_file) if settings.ssl_cert_file else None,
    )


def _bind(settings: ServerSettings) -> socket.socket:
    """Bound here rather than by uvicorn, so that a port in use is one clear line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartupError(f"the host {settings.host!r} cannot be resolved: {error.strerror}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Listening now, not later: another process that asks for this port is refused from here on.
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise StartupError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}") from None
    return sock


def _authority(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
