"""Whether a file can be a library for this machine, by its first bytes."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from paddock.libraries.elf import MACHINES, read_elf

_OTHER_FORMATS = {
    b"MZ": "for Windows",
    b"\xcf\xfa\xed\xfe": "for macOS",
    b"\xca\xfe\xba\xbe": "for macOS",
    b"!<arch>": "a static library (.a)",
}


def file_problem(path: Path) -> str | None:
    """Why this file cannot be a library for this machine, by its first bytes. The loader's own messages are wrong or
    unclear: it says of a library for another CPU that it does not exist.
    """
    try:
        with path.open("rb") as file:
            start, size = file.read(8), os.fstat(file.fileno()).st_size
        found = read_elf(path)
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not sys.platform.startswith("linux"):
        return None
    if found is not None:
        here = platform.machine()
        if here in MACHINES.values() and found.machine != here:
            return f"it is for another CPU ({found.machine}, this one is {here})"
        # Loading it would end the process with SIGBUS.
        return f"it is incomplete ({size:,} of at least {found.size:,} bytes)" if size < found.size else None
    return f"it is {next((what for magic, what in _OTHER_FORMATS.items() if start.startswith(magic)), 'no library')}"
