"""`python -m paddock.worker.build` prints how libllama was built as JSON. It may crash, which the caller handles."""

from __future__ import annotations

import sys

import msgspec

from paddock.errors import LibraryUnusable


def main() -> None:
    try:
        from paddock.engine.devices import build  # this loads the library
    except LibraryUnusable as error:
        sys.exit(error.message)
    sys.stdout.write(msgspec.json.encode(build()).decode() + "\n")


if __name__ == "__main__":
    main()
