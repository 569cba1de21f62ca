"""`python -m paddock.worker.build` prints how libllama was built as JSON. It may crash, which the caller handles."""

from __future__ import annotations

import sys

import msgspec

from paddock.engine.devices import build


def main() -> None:
    sys.stdout.write(msgspec.json.encode(build()).decode() + "\n")


if __name__ == "__main__":
    main()
