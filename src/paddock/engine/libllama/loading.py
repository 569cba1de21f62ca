"""Loads a library and checks that it can be used."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from paddock.engine.libllama.functions import OPTIONAL, REQUIRED
from paddock.engine.libllama.layout import KNOWN, find_mismatch, is_known
from paddock.errors import LibraryUnusable
from paddock.libraries import VARIABLE, Found, candidates, file_problem, install_hint

_FIRST_VERSION = "0.1.0"
_MOST_LISTED = 3


class Library:
    """The functions of a loaded library, as attributes. They have the names and types of llama.h."""

    def __init__(self, found: Found) -> None:
        """Raises `LibraryUnusable`."""
        self.path, self.origin = found.path, found.origin
        if (problem := file_problem(found.path)) is not None:
            raise _unusable(found, problem)
        try:
            self.handle = ctypes.CDLL(str(found.path))
        except OSError as error:
            raise _unusable(found, _loader_problem(error)) from None
        if not hasattr(self.handle, "llama_decode"):
            raise _unusable(found, "it is another library: it has no function llama_decode")
        if not self._declare("llama_version", REQUIRED["llama_version"]):
            raise _unknown(found, f"it is llama.cpp before {_FIRST_VERSION}: it has no function llama_version")
        self.version = self._text("llama_version")
        if not is_known(self.version):
            raise _unknown(found, f"it is llama.cpp {self.version or 'without a version'}, which has unknown structs")
        missing = [name for name, signature in REQUIRED.items() if not self._declare(name, signature)]
        if missing:
            raise _unknown(found, f"it is llama.cpp {self.version} without {_list(missing)}")
        for name, signature in OPTIONAL.items():
            self._declare(name, signature)
        if (mismatch := find_mismatch(self)) is not None:
            raise _unknown(found, f"it is llama.cpp {self.version} with other structs: {mismatch}")

    def __getattr__(self, name: str) -> Any:
        """Only for type checkers: the functions are attributes of the object."""
        raise AttributeError(name)

    def has(self, name: str) -> bool:
        """Whether it exports one of the `OPTIONAL` functions."""
        return name in self.__dict__

    @property
    def commit(self) -> str:
        """The llama.cpp commit that it was built from; empty: unknown."""
        found = self._text("ggml_commit")
        return "" if found == "unknown" else found

    def _declare(self, name: str, signature: tuple[Any, tuple[Any, ...]]) -> bool:
        """Make an attribute of the function, if there is one."""
        function = getattr(self.handle, name, None)
        if function is None:
            return False
        function.restype, function.argtypes = signature[0], list(signature[1])
        setattr(self, name, function)
        return True

    def _text(self, name: str) -> str:
        return (getattr(self, name)() or b"").decode("ascii", "replace")


def open_library(environment: Mapping[str, str] = os.environ) -> Library:
    """Load the first library that exists. If it is unusable, the next one is named but not tried: another library than
    the one that a user installed must not be used silently.

    Raises `LibraryUnusable`.
    """
    found = candidates(environment)
    if (first := next(found, None)) is None:
        raise LibraryUnusable(f"there is no libllama: {install_hint()}")
    try:
        return Library(first)
    except LibraryUnusable as error:
        if (second := next(found, None)) is None:
            raise
        raise LibraryUnusable(f"{error.message}; or set {VARIABLE}={second.path} ({second.origin})") from None


def _unusable(found: Found, problem: str) -> LibraryUnusable:
    return LibraryUnusable(f"cannot use {found.path} ({found.origin}): {problem}")


def _unknown(found: Found, problem: str) -> LibraryUnusable:
    return _unusable(found, f"{problem}. Known are llama.cpp {' and '.join(KNOWN)}: {install_hint()}")


def _loader_problem(error: OSError) -> str:
    text = str(error)
    if "libgomp" in text:
        return "libgomp.so.1 is missing: install it (Debian, Ubuntu: apt install libgomp1; Fedora: dnf install libgomp)"
    return text


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more functions" if len(names) > _MOST_LISTED else ""
    return f"{', '.join(names[:_MOST_LISTED])}{more}"
