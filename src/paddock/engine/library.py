"""Initializes libllama once per process and captures its log lines."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from functools import cache
from typing import Any

from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import LogCallback
from paddock.errors import ModelLoadFailed, OutOfMemory
from paddock.libraries import build_id, compiler
from paddock.types import LibraryInfo

_INFO, _WARNING, _ERROR, _CONTINUED = 2, 3, 4, 5
# ggml's levels as prefixes of sd-daemon(3), which the gateway parses.
_PREFIXES = {_INFO: "<7>", _WARNING: "<4>", _ERROR: "<3>"}
# A warning that is wrong here: shared cells may be more than one sequence can use, and no request gets more than the
# model was trained for.
_EXPECTED = "possible training context overflow"
# The error messages of a failed allocation. libllama has no error code for it.
_NO_MEMORY = ("failed to allocate", "unable to allocate", "cannot allocate memory", "out of memory", "std::bad_alloc")


class NativeLog:
    """Writes libllama's log lines to stderr with their levels, and keeps the last errors. Lines below a warning are
    written only if `verbose` is set.
    """

    def __init__(self) -> None:
        self.verbose = False
        self.errors: deque[str] = deque(maxlen=8)
        self._level = 0
        self._line = ""
        # libllama keeps this pointer for the life of the process. If the callback were freed, it would crash later.
        self.callback = LogCallback(self._on_line)

    def install(self) -> None:
        lib.llama_log_set(self.callback, ctypes.c_void_p(0))

    def _on_line(self, level: int, text: bytes, _data: Any) -> None:
        if level != _CONTINUED:
            self._write_line()
            self._level = level
        self._line += text.decode("utf-8", "replace")
        if self._line.endswith("\n"):
            self._write_line()

    def _write_line(self) -> None:
        line, self._line = self._line.strip(), ""
        if not line:
            return
        if self._level == _ERROR:
            self.errors.append(line)
        elif self._level == _WARNING and line.endswith(_EXPECTED):
            self._level = _INFO
        if self.verbose or self._level >= _WARNING:
            prefix = _PREFIXES.get(self._level, "<7>")
            sys.stderr.write("".join(f"{prefix}{part}\n" for part in line.replace("\t", " ").splitlines()))


log = NativeLog()
_started = False


def start(*, verbose: bool) -> None:
    """Initialize libllama. Idempotent."""
    global _started
    log.verbose = verbose
    if not _started:
        _started = True
        log.install()
        lib.llama_backend_init()
        if lib.has("ggml_backend_reg_count") and not lib.ggml_backend_reg_count():
            # A build with a library per backend, which ggml looks for beside the executable: that is Python here.
            lib.ggml_backend_load_all_from_path(str(lib.path.parent).encode())


@cache
def info() -> LibraryInfo:
    start(verbose=log.verbose)
    # `CPU : NEON = 1 | DOTPROD = 1 | … | CUDA : ARCHS = 900 | …`: a part for each device, with the active features.
    text = lib.llama_print_system_info().decode("utf-8", "replace")
    parts = (part.rpartition(":")[2].partition("=") for part in text.split("|"))
    return LibraryInfo(
        version=lib.version,
        commit=lib.commit,
        build_id=build_id(lib.path),
        compiler=compiler(lib.path),
        features=tuple(name.strip() for name, _, value in parts if value.strip() == "1"),
        origin=lib.origin,
        path=str(lib.path),
    )


def load_failure(what: str) -> ModelLoadFailed:
    """The error for a failed call, with libllama's last error lines."""
    reason = "; ".join(log.errors) or "libllama gave no reason"
    no_memory = any(phrase in reason.lower() for phrase in _NO_MEMORY)
    return (OutOfMemory if no_memory else ModelLoadFailed)(f"{what}: {reason}")
