"""From settings to a listening server, and back down without losing an answer that can still be finished."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable

import uvicorn

from paddock.config import ModelManagerSettings, ServerSettings, Settings
from paddock.errors import StartupError
from paddock.fleet import Fleet, open_catalogue
from paddock.gateway.app import create_app
from paddock.types import EngineOptions

_BACKLOG = 2048


def serve(settings: Settings, on_listening: Callable[[str, Fleet], None]) -> None:
    """Run until a signal ends it. `on_listening` is told the address once requests are answered.

    Raises `StartupError` before anything has been started.
    """
    catalogue = open_catalogue(settings.model_manager)
    folder = settings.server.slot_save_path
    if folder is not None and not folder.is_dir():
        raise StartupError(f"the folder for saved slots {folder} does not exist")
    sock = _bind(settings.server)
    fleet = Fleet(catalogue, _engine_options(settings), load_timeout=settings.model_manager.load_timeout)
    config = _uvicorn_config(settings.server, fleet)
    url = f"{'https' if config.is_ssl else 'http'}://{_authority(sock)}"
    with sock:
        _Server(config, fleet, settings.server.shutdown_grace, lambda: on_listening(url, fleet)).run(sockets=[sock])


class _Server(uvicorn.Server):
    """uvicorn, which on a signal stops listening; here the running streams are then given their grace."""

    def __init__(self, config: uvicorn.Config, fleet: Fleet, grace: float, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._fleet = fleet
        self._grace = grace
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
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


def _engine_options(settings: Settings) -> EngineOptions:
    manager = settings.model_manager
    return EngineOptions(
        n_ctx=manager.n_ctx,
        n_batch=manager.n_batch,
        n_ubatch=manager.n_ubatch,
        n_gpu_layers=manager.n_gpu_layers,
        n_threads=manager.n_threads,
        flash_attn=manager.flash_attn,
        cache_type_k=manager.cache_type_k,
        cache_type_v=manager.cache_type_v,
        parallel=manager.parallel or _default_parallel(),
        kv_unified=_unified(manager),
        continuous_batching=manager.cont_batching,
        max_queue=manager.max_queue,
        cache_ram_bytes=_cache_ram(manager.cache_ram),
        deterministic=manager.deterministic,
        verbose=settings.server.log_level == "DEBUG",
    )


def _default_parallel() -> int:
    """Four to a core: more only take turns, and a request that waits costs nobody anything."""
    return max(4, min(4 * (os.cpu_count() or 1), 64))


def _unified(manager: ModelManagerSettings) -> bool:
    """As llama-server has it: whoever says how many run at once gets a part of the context for each, which is faster;
    otherwise all share the whole of it. Only with a part of its own is an answer the same whoever else is there.
    """
    if manager.kv_unified is not None:
        return manager.kv_unified
    return manager.parallel is None and not manager.deterministic


def _cache_ram(mebibytes: int | None) -> int:
    """An eighth of the machine's memory, as far as 8 GiB, unless told."""
    if mebibytes is None:
        return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8, 8 << 30)
    return 1 << 62 if mebibytes < 0 else mebibytes << 20


def _uvicorn_config(settings: ServerSettings, fleet: Fleet) -> uvicorn.Config:
    if (settings.ssl_key_file is None) != (settings.ssl_cert_file is None):
        raise StartupError("TLS needs both ssl_key_file and ssl_cert_file")
    for file in (settings.ssl_key_file, settings.ssl_cert_file):
        if file is not None and not file.is_file():
            raise StartupError(f"the TLS file {file} does not exist")
    return uvicorn.Config(
        create_app(settings, fleet),
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
