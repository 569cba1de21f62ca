"""libllama as a whole: started once per process, its log lines caught."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from typing import Any

import llama_cpp.llama_cpp as lib

from paddock.errors import ModelLoadFailed, OutOfMemory

_INFO, _WARNING, _ERROR, _CONTINUED = 2, 3, 4, 5
# ggml's levels as sd-daemon(3) writes them before a line, which is how the gateway knows them.
_PREFIXES = {_INFO: "<7>", _WARNING: "<4>", _ERROR: "<3>"}
# What its parts say when they are given no memory; there is no other way to know.
_NO_MEMORY = ("failed to allocate", "unable to allocate", "cannot allocate memory", "out of memory", "std::bad_alloc")


class NativeLog:
    """Passes libllama's log lines to stderr, each with its level (warnings and errors only, unless verbose), and
    remembers the last errors.
    """

    def __init__(self) -> None:
        self.verbose = False
        self.errors: deque[str] = deque(maxlen=8)
        self._level = 0
        self._line = ""
        # libllama keeps this pointer for the life of the process: losing the reference is a segfault later.
        self._callback = lib.llama_log_callback(self._on_line)

    def install(self) -> None:
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _on_line(self, level: int, text: bytes, _data: Any) -> None:
        if level != _CONTINUED:
            self._tell()
            self._level = level
        self._line += text.decode("utf-8", "replace")
        if self._line.endswith("\n"):
            self._tell()

    def _tell(self) -> None:
        """A line is complete, or another one begins."""
        line, self._line = self._line.strip(), ""
        if not line:
            return
        if self._level == _ERROR:
            self.errors.append(line)
        if self.verbose or self._level >= _WARNING:
            prefix = _PREFIXES.get(self._level, "<7>")
            sys.stderr.write("".join(f"{prefix}{part}\n" for part in line.replace("\t", " ").splitlines()))


log = NativeLog()
_started = False


def start(*, verbose: bool) -> None:
    """Bring libllama up. Idempotent."""
    global _started
    log.verbose = verbose
    if not _started:
        _started = True
        log.install()
        lib.llama_backend_init()


def commit() -> str:
    """The commit that the library was built from; empty where it does not say so."""
    try:
        function = lib._lib.ggml_commit  # noqa: SLF001 (the bindings leave it out)
    except AttributeError:
        return ""
    function.restype = ctypes.c_char_p
    found = (function() or b"").decode("ascii", "replace")
    return "" if found == "unknown" else found


def load_failure(what: str) -> ModelLoadFailed:
    """The error to raise for something that libllama did not give us, with what it said of it."""
    reason = "; ".join(log.errors) or "libllama gave no reason"
    no_memory = any(phrase in reason.lower() for phrase in _NO_MEMORY)
    return (OutOfMemory if no_memory else ModelLoadFailed)(f"{what}: {reason}")
