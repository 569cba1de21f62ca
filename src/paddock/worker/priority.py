"""Lower priorities for threads in native code, where the system has priorities for threads.

Only for native code: a thread that holds the GIL and does not get to run would stop all others.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

LOW: Final = 10
"""Below the engine thread and the I/O thread."""
LOWEST: Final = 19


def set_priority(thread: threading.Thread, nice: int) -> None:
    if sys.platform == "linux" and thread.native_id is not None:
        try:
            os.setpriority(os.PRIO_PROCESS, thread.native_id, nice)
        except OSError:
            pass  # the thread has ended, or the system does not allow it
