"""Starts the server from settings, and stops it without losing running answers."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from paddock import logs
from paddock.config import ServerSettings, Settings
from paddock.errors import PaddockError, StartupError
from paddock.fleet import Fleet, Model, Rules, create_cache_folder, open_catalogue
from paddock.gateway.app import create_app
from paddock.gateway.http.connection import bounded_protocol
from paddock.gateway.http.connection_slots import ConnectionLimits
from paddock.gateway.http.handshakes import TLSListener
from paddock.gateway.http.listening import BACKLOG, listening
from paddock.gateway.http.tls import Certificate
from paddock.gateway.ops.reload import Reloader
from paddock.gateway.ops.systemd import Notifier

_log = structlog.get_logger(__name__)

_CLOSING = 5
"""Seconds for connections to close after the last request."""
_MOST_FILES = 65536
_OTHER_FILES = 256
"""File descriptors that are not connections: workers, model files, refused connections."""


def serve(
    settings: Settings,
    on_listening: Callable[[Sequence[str], Fleet], None],
    reread: Callable[[], Settings] | None = None,
) -> None:
    """Run until a signal ends the server. `on_listening` is called with the URLs when the server answers requests;
    `reread` reads the settings again from their sources.

    Raises `StartupError` before anything has been started, or when the only model cannot be loaded at the start.
    """
    if sys.__stderr__ is not None:  # systemd ends a server that hangs with SIGABRT; the journal then says where it hung
        faulthandler.enable(sys.__stderr__)
    catalogue = open_catalogue(
        settings.model_manager,
        verbose=settings.server.log_level == "DEBUG",
        slot_save_path=settings.server.slot_save_path,
    )
    for note in catalogue.notes:
        _log.warning(note)
    folder = settings.server.slot_save_path
    if folder is not None and not folder.is_dir():
        raise StartupError(f"the folder for saved slots {folder} does not exist")
    for cache_folder in settings.model_manager.cache_folders:
        if problem := create_cache_folder(cache_folder):
            raise StartupError(problem)
    certificate = Certificate.of(settings.server)
    with listening(settings.server) as listeners:
        fleet = Fleet(catalogue, Rules.of(settings.model_manager))
        app = create_app(settings, fleet, reread or (lambda: settings))
        urls = [listener.url for listener in listeners]
        notifier = Notifier.from_environment(os.environ)

        def started() -> None:
            on_listening(urls, fleet)
            notifier.ready(listening_on=", ".join(urls))

        server = _Server(settings.server, app, fleet, notifier, certificate, started)
        server.run(sockets=[listener.sock for listener in listeners])
    if server.failure is not None:
        raise server.failure


class _Server(uvicorn.Server):
    """uvicorn, with a grace period for running requests before it stops listening."""

    def __init__(
        self,
        settings: ServerSettings,
        app: FastAPI,
        fleet: Fleet,
        notifier: Notifier,
        certificate: Certificate | None,
        on_listening: Callable[[], None],
    ) -> None:
        super().__init__(_uvicorn_config(settings, app))
        self._settings = settings
        self._app = app
        self._fleet = fleet
        self._reloader: Reloader = app.state.reloader
        self._notifier = notifier
        self._certificate = certificate
        self._on_listening = on_listening
        self._watching: list[asyncio.Task[None]] = []
        self._reloading: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self.failure: StartupError | None = None
        """Why the server ended by itself."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._certificate is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            protocol: Any = self.config.http_protocol_class
            make = partial(protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            for sock in sockets or []:
                listener = TLSListener(sock, self._certificate.context, self._settings.handshake_timeout, make)
                self.servers.append(listener)  # type: ignore[arg-type]
        if self.started:
            self._app.state.http_counts.connections = self.server_state.connections
            self._fleet.preload(self._on_load_failure)
            with contextlib.suppress(NotImplementedError):  # not on every system
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)
            self._beating = asyncio.ensure_future(self._notifier.keep_alive())
            self._watching = [asyncio.ensure_future(self._reloader.watch())]
            if self._certificate is not None:
                self._watching.append(asyncio.ensure_future(self._certificate.watch()))
            self._on_listening()

    def _on_load_failure(self, model: Model, error: PaddockError) -> None:
        """Without its only model the server has nothing to serve, so it ends, as llama-server does. A load that crashes
        is not repeated here: the service manager may restart the server.
        """
        if self._fleet.catalogue.is_single and not model.replicas:
            self.failure = StartupError(f"{error.message} (--lazy starts the server without loading the model)")
            self.should_exit = True

    def _on_hangup(self) -> None:
        logs.reopen()
        if self._certificate is not None:
            self._certificate.renew()
        self._reloading = asyncio.ensure_future(self._reload())

    async def _reload(self) -> None:
        self._notifier.reloading()
        try:
            await self._reloader.reload()
            status = 200
        except PaddockError as error:  # already logged
            status = error.status
        if (audit := self._app.state.audit) is not None:
            audit.record("SIGHUP", status)
        self._notifier.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._notifier.stopping()
        for task in self._watching:
            task.cancel()
        if (batches := self._app.state.batches) is not None:
            await batches.stop()  # the next server runs what is left, so nothing waits for it
        # Still listening, so that /health reports it; new requests to models get a 503.
        await self._drain()
        await super().shutdown(sockets)
        if self.force_exit and not self.lifespan.shutdown_event.is_set():
            # uvicorn would cancel the lifespan, and log that as an error.
            await self.lifespan.shutdown()
        # uvicorn raises the signal again at the end; a clean stop is a success.
        self._captured_signals.clear()

    async def _drain(self) -> None:
        task = asyncio.ensure_future(self._fleet.drain(self._settings.shutdown_grace))
        while not task.done() and not self.force_exit:
            await asyncio.wait({task}, timeout=0.05)
        if self.force_exit:  # a second Ctrl-C
            task.cancel()
            await self._fleet.close()


def _uvicorn_config(settings: ServerSettings, app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=bounded_protocol(_connection_limits(settings)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=settings.keep_alive_timeout,
        # For connections that stay open after the grace period.
        timeout_graceful_shutdown=_CLOSING,
    )


def _connection_limits(settings: ServerSettings) -> ConnectionLimits:
    limits = ConnectionLimits.of(settings, possible=max(1, _files_allowed() - _OTHER_FILES))
    if limits.connections < settings.max_connections:
        _log.warning(
            "fewer connections than max_connections, because of the limit of open files",
            max_connections=settings.max_connections,
            possible=limits.connections,
        )
    return limits


def _files_allowed() -> int:
    """The number of open files that the process may have, after raising the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
