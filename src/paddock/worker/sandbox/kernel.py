"""System calls that Python has no functions for. Each returns its result, or raises `OSError`."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS = 38


def call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """The system call of this number. Bytes are given by their address."""
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    _libc.syscall.restype = ctypes.c_long
    result = int(_libc.syscall(ctypes.c_long(number), *given))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def set_no_new_privs() -> None:
    """For this thread and those that it starts: no program that it runs has more rights than itself."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
