"""How long does it take to start, and what does an idle gateway weigh?  `python -m paddock_lab.startup`"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil

_RUNS = 5
_PORT = 18080


def main() -> None:
    print(f"paddock --help          {_median(_help):6.3f} s   (bar: 0.4)")
    starts, weights = zip(*(_serve() for _ in range(_RUNS)), strict=True)
    print(f"start → /health answers {statistics.median(starts):6.3f} s   (bar: 2)")
    print(f"idle gateway, resident  {statistics.median(weights):6.1f} MB  (bar: 90)")


def _median(measure: object) -> float:
    assert callable(measure)
    return statistics.median(float(measure()) for _ in range(_RUNS))


def _help() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "paddock", "--help"], check=True, capture_output=True)
    return time.perf_counter() - begun


def _serve() -> tuple[float, float]:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "paddock", "serve", "--lazy", "--port", str(_PORT), "--log-disable"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/health", timeout=1):
                    took = time.perf_counter() - begun
                    return took, psutil.Process(process.pid).memory_info().rss / 1e6
            except (urllib.error.URLError, ConnectionError):
                if time.perf_counter() - begun > 30:
                    raise
                time.sleep(0.005)
    finally:
        process.terminate()
        process.wait(20)


if __name__ == "__main__":
    main()
