"""Checks the models directory every few seconds, so that new files are served without a reload."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import structlog

from paddock.errors import InvalidRequest
from paddock.fleet import scan_files

_log = structlog.get_logger(__name__)


class Rescans(Protocol):
    async def rescan(self) -> list[str]:
        """Serve what the directory holds now. Returns what changed. Raises `InvalidRequest`, with all as it was."""


class FolderWatch:
    """Only names, sizes and times are looked at, on a thread. A file that is still being written changes from look to
    look; so the directory is read again when it is the same twice, and not as it was.
    """

    def __init__(self, directory: Path, interval: float, reloader: Rescans) -> None:
        self._directory = directory
        self._interval = interval
        self._reloader = reloader

    async def run(self) -> None:
        served = seen = await self._look()
        while True:
            await asyncio.sleep(self._interval)
            before, seen = seen, await self._look()
            if seen == before != served:
                served = seen
                if not seen:
                    _log.warning("the models directory is empty: nothing is changed", directory=str(self._directory))
                    continue
                try:
                    _log.info("the models directory has changed", changed=await self._reloader.rescan())
                except InvalidRequest as error:
                    _log.error("the models directory has changed, but", error=error.message)

    async def _look(self) -> frozenset[tuple[str, int, int]]:
        return await asyncio.to_thread(scan_files, self._directory)
