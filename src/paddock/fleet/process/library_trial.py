"""Tries a library in a process of its own: a tiny model must answer correctly."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import structlog

from paddock.errors import LibraryUnusable
from paddock.fleet.process.native import NativeQueryFailed, ask_native
from paddock.libraries import Found, find_library, install_hint, is_in_doubt, note_trial, was_tried

_WITHIN = 120.0
"""Seconds. It takes less than one on an idle machine."""

_log = structlog.get_logger(__name__)


class _Answer(msgspec.Struct, frozen=True):
    problem: str = ""
    refusal: str = ""


class Trial(msgspec.Struct, frozen=True):
    """Empty texts: it works."""

    problem: str = ""
    """What is wrong with its answers, or how the process ended."""
    refusal: str = ""
    """The library's own error, if it cannot be loaded: a whole message."""
    illegal_instruction: bool = False
    """The process died of an instruction that this CPU does not have."""


def try_library(path: Path | None = None, *, on_gpu: bool = False) -> Trial:
    """`path` is a library or its folder; None: the one that workers use."""
    try:
        options = ["gpu"] if on_gpu else []
        answer = ask_native("trial", _Answer, "count", *options, library=path, within=_WITHIN)
    except NativeQueryFailed as error:
        if error.status is None or error.status >= 0:
            return Trial(f"a tiny model cannot be tried: {error}")
        name = signal.Signals(-error.status).name
        if error.status == -signal.SIGILL:
            return Trial(f"it ended with {name}: the CPU does not have an instruction", illegal_instruction=True)
        return Trial(f"a process that decodes a tiny model with it ends with {name}")
    return Trial(answer.problem, answer.refusal)


def doubtful_library() -> Found | None:
    """The library that workers use, if it must be tried first."""
    found = find_library()
    return found if found is not None and is_in_doubt(found) and not was_tried(found.path) else None


def prove_library() -> None:
    """Try the library that workers use if that is necessary, and remember that it works.

    Raises `LibraryUnusable`.
    """
    found = doubtful_library()
    if found is None:
        return
    tried = try_library()
    if tried.refusal:
        raise LibraryUnusable(tried.refusal)
    if tried.illegal_instruction:
        return  # the load handles it: without repacked weights it may work
    if tried.problem:
        raise LibraryUnusable(f"cannot use {found.path} ({found.origin}): {tried.problem}: {install_hint()}")
    _log.info("a tiny model was computed correctly with this libllama", path=str(found.path), origin=found.origin)
    note_trial(found.path)


class LibraryProof:
    """`prove_library` for several loads at once: one process is enough."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def require(self) -> None:
        """Raises `LibraryUnusable`."""
        async with self._lock:
            await asyncio.to_thread(prove_library)
