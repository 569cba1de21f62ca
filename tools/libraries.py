"""Have each of llama.cpp's libraries once in an environment: python3 tools/libraries.py ENVIRONMENT.

Its build installs libllama.so.0.5.0 with links libllama.so.0 and libllama.so to it, twice: below lib/ and below
llama_cpp/lib/. A wheel is a zip file and holds no links, so pip writes six copies of everything: 61 MB instead of 13.
Here copies become relative links to one of them again. Standard library only; done twice it changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from filecmp import cmp
from pathlib import Path

_FOLDERS = ("llama_cpp/lib", "lib")
"""The first one is where the binding loads them from."""


def main() -> None:
    for packages in Path(sys.argv[1]).glob("lib/python*/site-packages"):
        if saved := share(packages):
            print(f"llama.cpp's libraries are there once instead of several times: {saved >> 20} MiB less")


def share(packages: Path) -> int:
    """Returns the bytes that are free now."""
    kept: list[Path] = []
    saved = 0
    for path in _libraries(packages):
        size = path.stat().st_size
        same = next((one for one in kept if one.stat().st_size == size and cmp(one, path, shallow=False)), None)
        if same is None:
            kept.append(path)
            continue
        link = path.with_name(f".{path.name}.link")
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(same, path.parent))
        link.replace(path)  # in one step: a server that starts now finds the one or the other
        saved += size
    return saved


def _libraries(packages: Path) -> Iterator[Path]:
    """Files, and no links; the longest name of each first, which is the one that the others are links to."""
    for folder in _FOLDERS:
        place = packages / folder
        if place.is_dir():
            names = (path for path in place.iterdir() if ".so" in path.name and not path.name.startswith("."))
            yield from sorted((path for path in names if not path.is_symlink()), key=lambda path: -len(path.name))


if __name__ == "__main__":
    main()
