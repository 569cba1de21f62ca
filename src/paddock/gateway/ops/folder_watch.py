"""Checks the models directory every few seconds, so that new files are served without a reload."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from paddock.errors import InvalidRequest
from paddock.fleet import scan_files

_log = structlog.get_logger(__name__)


class FolderWatch:
    """Compares names, sizes and times, on a thread. A file that is still being written changes from check to check, so
    the directory is read again only when two checks in a row find the same, and it differs from what is served.
    """

    def __init__(self, directory: Path, interval: float, rescan: Callable[[], Awaitable[list[str]]]) -> None:
        """`rescan` returns what changed, or raises `InvalidRequest` and changes nothing."""
        self._directory = directory
        self._interval = interval
        self._rescan = rescan

    async def run(self) -> None:
        served = seen = await self._scan()
        while True:
            await asyncio.sleep(self._interval)
            before, seen = seen, await self._scan()
            if seen == before != served:
                served = seen
                if not seen:
                    _log.warning("the models directory is empty: nothing was changed", directory=str(self._directory))
                    continue
                try:
                    _log.info("the models directory has changed", changed=await self._rescan())
                except InvalidRequest as error:
                    _log.error("the changed models directory cannot be served", error=error.message)

    async def _scan(self) -> frozenset[tuple[str, int, int]]:
        return await asyncio.to_thread(scan_files, self._directory)
