"""Threads whose work others need not wait for run behind them, where threads have priorities of their own.

Only for native code: a thread that holds Python's lock and does not get to run keeps all others from running.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

BEHIND: Final = 10
"""Behind the engine and the I/O thread, which every client waits for."""
LAST: Final = 19


def put_behind(thread: threading.Thread, nice: int) -> None:
    if sys.platform == "linux" and thread.native_id is not None:
        try:
            os.setpriority(os.PRIO_PROCESS, thread.native_id, nice)
        except OSError:
            pass  # it has just ended, or may not
