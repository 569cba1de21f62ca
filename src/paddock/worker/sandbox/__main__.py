"""`python -m paddock.worker.sandbox` confines itself and prints what is active as JSON, for `paddock doctor`."""

from __future__ import annotations

import sys

import msgspec

from paddock.types import Sandbox
from paddock.worker.sandbox import confine_calls, confine_files


def main() -> None:
    sandbox = Sandbox()
    state = confine_calls(sandbox, confine_files(sandbox))
    sys.stdout.write(msgspec.json.encode(state).decode() + "\n")


if __name__ == "__main__":
    main()
