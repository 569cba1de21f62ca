"""A thread on which SQLite and files are used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class StoreThread:
    """Runs the operations of the store, one at a time, in the order in which they are called."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)

    async def call(self, operation: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.wrap_future(self._executor.submit(operation, *args, **kwargs))

    def wait_for(self, operation: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The same for another thread."""
        return self._executor.submit(operation, *args, **kwargs).result()

    def close(self) -> None:
        self._executor.shutdown()
