"""Pin what is installed in this environment: names, numbers and hashes, no index, no paths.

constraints.txt has every version of the development environment. requirements.lock has what a server needs, with the
hash of every file that the index has of that version, so that it holds on any machine; uv writes it.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

_HEADER = """\
# The versions Paddock is tested with. Made by `make lock`; used by `make serve` and `make test`.
"""
_LOCK_HEADER = """\
# What a server needs, pinned by hash. Made by `make lock`. To install exactly this, then Paddock itself:
#   pip install --require-hashes -r requirements.lock && pip install --no-deps paddock-llm
"""
_EXTRAS = ("otel", "receipts", "run")
_NOT_INSTALLED = ("diskcache", "llama-cpp-python")
"""Of an extra that the development environment does not have, since it is compiled. Their versions stay as they are."""
_NOT_OURS = {"paddock", "paddock-lab", "paddock-llm", "pip", "setuptools", "wheel"}


def main() -> None:
    before = dict(re.findall(r"^(\S+)==(\S+)$", Path("constraints.txt").read_text("utf-8"), re.MULTILINE))
    pins = {name: before[name] for name in _NOT_INSTALLED if name in before}
    pins |= {
        re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower(): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items()) if name not in _NOT_OURS]
    Path("constraints.txt").write_text(_HEADER + "".join(lines), "utf-8")
    print(f"constraints.txt: {len(lines)} packages")
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("requirements.lock is unchanged: it is written by uv, which is not installed (pip install uv)")
    extras = [part for extra in _EXTRAS for part in ("--extra", extra)]
    compiled = subprocess.run(
        [
            uv, "pip", "compile", "pyproject.toml", *extras, "--constraint", "constraints.txt", "--universal",
            "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url",
            "--quiet",
        ],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    Path("requirements.lock").write_text(_LOCK_HEADER + compiled, "utf-8")
    print(f"requirements.lock: {len(re.findall(r'^[a-z0-9]', compiled, re.MULTILINE))} packages")


if __name__ == "__main__":
    main()
