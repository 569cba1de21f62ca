"""`python -m paddock.worker.devices` prints the GPUs and their memory as JSON: native code that the gateway, which may
not load any, has run for a moment in a process of its own.
"""

from __future__ import annotations

import sys

import msgspec

from paddock.engine.devices import gpus


def main() -> None:
    sys.stdout.write(msgspec.json.encode(gpus()).decode() + "\n")


if __name__ == "__main__":
    main()
