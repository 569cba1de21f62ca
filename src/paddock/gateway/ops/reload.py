"""Reloads the settings and the models directory while the server runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from paddock import logs
from paddock.config import ModelManagerSettings, ServerSettings, Settings
from paddock.errors import InvalidRequest, StartupError
from paddock.fleet import Catalogue, Fleet, Rules, open_catalogue, scan_files
from paddock.gateway.auth.gate import Gate
from paddock.gateway.auth.keys import Key, read_keys
from paddock.gateway.generation.defaults import check_defaults
from paddock.mcp import ToolServers, resolve

_log = structlog.get_logger(__name__)

_AT_ONCE = frozenset(
    {"keys", "api_keys", "api_key_file", "log_level"}
    | {"cors_origins", "cors_methods", "cors_headers", "cors_credentials", "mcp_servers"}
)
"""Settings of the server that take effect with a reload."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    changed: list[str]
    """Models that are new, removed or have other options."""
    restart_needed: list[str]
    """Changed settings that take effect at the next start."""


class Reloader:
    """Applies the difference, or nothing at all."""

    def __init__(
        self, fleet: Fleet, gate: Gate, settings: Settings, reread: Callable[[], Settings], tools: ToolServers
    ) -> None:
        self._fleet = fleet
        self._gate = gate
        self._tools = tools
        self._settings = settings
        self._reread = reread
        self._manager = settings.model_manager
        self._lock = asyncio.Lock()
        self._followers: list[Callable[[ServerSettings], None]] = []

    @property
    def models_directory(self) -> Path | None:
        """The directory whose files are served; None for a single model."""
        return self._manager.models_directory if self._manager.model is None else None

    def when_reloaded(self, apply: Callable[[ServerSettings], None]) -> None:
        """Call `apply` with the server's settings after each reload."""
        self._followers.append(apply)

    async def reload(self) -> Reloaded:
        """Raises `InvalidRequest` if the settings are not valid; then nothing has changed."""
        async with self._lock:
            try:
                settings = await asyncio.to_thread(self._reread)
                keys = await asyncio.to_thread(self._read_keys, settings)
                check_defaults(settings.model_manager)
                targets = resolve(settings.server.mcp_servers, os.environ)
                catalogue = await self._open_catalogue(settings.model_manager)
            except StartupError as error:
                _log.error("not reloaded", error=error.message)
                raise _nothing_changed(error) from None
            for note in catalogue.notes:
                _log.warning(note)
            self._gate.replace(keys)
            self._tools.replace(targets)
            self._manager = settings.model_manager
            changed = self._fleet.reload(catalogue, Rules.of(settings.model_manager))
            before, after = self._settings.server, settings.server
            logs.set_level(after.log_level)
            for apply in self._followers:
                apply(after)
            restart = [
                name
                for name in type(after).model_fields
                if name not in _AT_ONCE and getattr(after, name) != getattr(before, name)
            ]
            _log.info("reloaded", changed=changed, restart_needed=restart)
            return Reloaded(changed, [f"server.{name}" for name in restart])

    async def rescan(self) -> list[str]:
        """Read the models directory again, with unchanged settings. Returns the models that are new, removed or
        changed. Raises `InvalidRequest`; then nothing has changed.
        """
        async with self._lock:
            try:
                catalogue = await self._open_catalogue(self._manager)
            except StartupError as error:
                raise _nothing_changed(error) from None
            return self._fleet.reload(catalogue, Rules.of(self._manager), keep_changes=True)

    async def watch(self) -> None:
        """Check the models directory periodically, so that new files are served without a reload.

        A check compares names, sizes and times. A file that is still being written changes from check to check, so the
        directory is read again only when two checks in a row find the same, and it differs from what is served.
        """
        directory, interval = self._manager.models_directory, self._manager.watch_interval
        if self._manager.model is not None or directory is None or not interval:
            return
        served = seen = await asyncio.to_thread(scan_files, directory)
        while True:
            await asyncio.sleep(interval)
            before, seen = seen, await asyncio.to_thread(scan_files, directory)
            if seen == before != served:
                served = seen
                if not seen:
                    _log.warning("the models directory is empty: nothing was changed", directory=str(directory))
                    continue
                try:
                    _log.info("the models directory has changed", changed=await self.rescan())
                except InvalidRequest as error:
                    _log.error("the changed models directory cannot be served", error=error.message)

    async def _open_catalogue(self, manager: ModelManagerSettings) -> Catalogue:
        """With the log level and the folder of the start. libllama's log level is set when a worker starts: a changed
        level must not unload models.
        """
        server = self._settings.server
        return await asyncio.to_thread(
            open_catalogue, manager, verbose=server.log_level == "DEBUG", slot_save_path=server.slot_save_path
        )

    def _read_keys(self, settings: Settings) -> list[Key]:
        keys = read_keys(settings.server)
        if self._gate.has_keys and not keys:
            raise StartupError(
                "there is no API key any more: a server with keys requires at least one until it is restarted"
            )
        return keys


def _nothing_changed(error: StartupError) -> InvalidRequest:
    return InvalidRequest(f"nothing was changed: {error.message}")
