"""`python -m paddock.worker.devices` prints the GPUs and their memory as JSON.

The gateway starts it as a process, because the gateway must not load native code.
"""

from __future__ import annotations

import sys

import msgspec

from paddock.errors import LibraryUnusable


def main() -> None:
    try:
        from paddock.engine.devices import gpus  # this loads the library
    except LibraryUnusable as error:
        sys.exit(error.message)
    sys.stdout.write(msgspec.json.encode(gpus()).decode() + "\n")


if __name__ == "__main__":
    main()
