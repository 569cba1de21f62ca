"""Start-up time and idle memory:  `python -m paddock_lab.startup`"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from paddock_lab.servers import Entrant, running

_RUNS = 5
_SERVE = Entrant("paddock", "{python} -m paddock serve --lazy --port {port} --log-disable")


def main() -> None:
    print(f"paddock --help          {statistics.median(_help() for _ in range(_RUNS)):6.3f} s   (bar: 0.4)")
    starts, sizes = zip(*(_serve() for _ in range(_RUNS)), strict=True)
    print(f"start → /health answers {statistics.median(starts):6.3f} s   (bar: 2)")
    print(f"idle gateway, resident  {statistics.median(sizes):6.1f} MB  (bar: 90)")


def _help() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "paddock", "--help"], check=True, capture_output=True)
    return time.perf_counter() - begun


def _serve() -> tuple[float, float]:
    begun = time.perf_counter()
    with running(_SERVE, {}, 30) as server:
        took = time.perf_counter() - begun
        assert server.process is not None, "it was started here"
        return took, server.process.memory_info().rss / 1e6


if __name__ == "__main__":
    main()
