"""Write the versions installed in this environment to constraints.txt: names and numbers, no index, no paths."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

_HEADER = """\
# The versions Paddock is tested with. Made by `make lock`; used by `make serve` and `make test`.
"""
_NOT_OURS = {"paddock", "paddock-llm", "pip", "setuptools", "wheel"}


def main() -> None:
    pins = {
        re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower(): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items()) if name not in _NOT_OURS]
    Path("constraints.txt").write_text(_HEADER + "".join(lines), "utf-8")
    print(f"constraints.txt: {len(lines)} packages")


if __name__ == "__main__":
    main()
