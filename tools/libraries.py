"""Replace duplicate copies of llama.cpp's libraries by links: python3 tools/libraries.py ENVIRONMENT.

Its build installs libllama.so.0.5.0 with links libllama.so.0 and libllama.so to it, twice: below lib/ and below
llama_cpp/lib/. A wheel is a zip file without links, so pip writes six copies of everything: 61 MB instead of 13.
This script makes the copies relative links again. Standard library only; a second run changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from filecmp import cmp
from pathlib import Path

_FOLDERS = ("llama_cpp/lib", "lib")
"""The binding loads the libraries from the first one."""


def main() -> None:
    for packages in Path(sys.argv[1]).glob("lib/python*/site-packages"):
        if saved := share(packages):
            print(f"duplicate libraries of llama.cpp are links now: {saved >> 20} MiB freed")


def share(packages: Path) -> int:
    """Returns the number of bytes that were freed."""
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
    """Regular files by library, the longest name first: the others become links to it."""
    for folder in _FOLDERS:
        place = packages / folder
        if place.is_dir():
            names = (path for path in place.iterdir() if ".so" in path.name and not path.name.startswith("."))
            yield from sorted((path for path in names if not path.is_symlink()), key=lambda path: -len(path.name))


if __name__ == "__main__":
    main()
