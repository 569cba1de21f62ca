"""System calls that Python does not provide. They raise `OSError`."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS = 38


def call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Make the system call with this number. Bytes are passed by their address."""
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    _libc.syscall.restype = ctypes.c_long
    result = int(_libc.syscall(ctypes.c_long(number), *given))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def set_no_new_privs() -> None:
    """This thread, and the threads that it starts later, cannot get more privileges by running a program."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
