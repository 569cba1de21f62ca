"""`python -m tests.worker.sandbox.attempts` confines itself like a worker and tries what a worker must not do."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddock.types import Sandbox
from paddock.worker.sandbox import confine_calls, confine_files


def main() -> None:
    said = json.loads(sys.argv[1])
    folder = Path(said["folder"])
    sandbox = Sandbox(readable=(str(folder / "model.gguf"),), writable=(str(folder / "slots"),))
    outcomes: dict[str, str] = {}
    go = threading.Event()

    def attempt(name: str, what: Callable[[], Any]) -> None:
        try:
            what()
            outcomes[name] = "done"
        except OSError as error:
            outcomes[name] = type(error).__name__

    def beside() -> None:
        """Runs on a thread that starts before the filter is installed."""
        go.wait()
        attempt("socket on another thread", lambda: socket.socket(socket.AF_INET))
        attempt("foreign file on another thread", (folder / "secret").read_bytes)

    state = confine_files(sandbox)
    thread = threading.Thread(target=beside)
    thread.start()
    state = confine_calls(sandbox, state)
    go.set()
    thread.join()
    attempt("inet", lambda: socket.socket(socket.AF_INET))
    attempt("inet6", lambda: socket.socket(socket.AF_INET6))
    attempt("unix", lambda: socket.socket(socket.AF_UNIX))
    attempt("exec", lambda: subprocess.run(["/bin/true"], check=True))
    attempt("fork", os.fork)
    attempt("signal", lambda: os.kill(os.getppid(), 0))
    attempt("signal itself", lambda: os.kill(os.getpid(), 0))
    attempt("chmod", lambda: (folder / "model.gguf").chmod(0o777))
    attempt("environment of another", Path(f"/proc/{os.getppid()}/environ").read_bytes)
    attempt("own memory map", Path("/proc/self/maps").read_bytes)
    attempt("model", (folder / "link.gguf").read_bytes)
    attempt("write model", lambda: (folder / "model.gguf").write_bytes(b""))
    attempt("foreign file", (folder / "secret").read_bytes)
    attempt("foreign folder", lambda: os.listdir(folder))
    attempt("new file", lambda: (folder / "new").write_bytes(b""))
    attempt("save slot", lambda: (folder / "slots" / ".x").write_bytes(b"x"))
    attempt("rename slot", lambda: os.replace(folder / "slots" / ".x", folder / "slots" / "x"))
    attempt("library", lambda: ctypes.CDLL("libm.so.6"))
    attempt("thread", lambda: threading.Thread(target=lambda: None).start())
    print(json.dumps({"active": state.active, "missing": state.missing, "outcomes": outcomes}))  # noqa: T201


if __name__ == "__main__":
    main()
