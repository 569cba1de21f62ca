"""Install Paddock for production: each version in its own environment, and a link to the one in use.

    python3 tools/install.py FOLDER install [EXTRAS]    this tree, as a wheel, into FOLDER/versions/VERSION
    python3 tools/install.py FOLDER use VERSION         FOLDER/current becomes that version: upgrade or rollback
    python3 tools/install.py FOLDER list                all versions; * marks the one in use

The installation does not depend on this tree and has no test tools. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from bootstrap import install as install_into

_ROOT = Path(__file__).resolve().parent.parent
_COMPLETE = ".complete"
"""Marks a complete installation."""


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, what, *rest = Path(sys.argv[1]).expanduser().absolute(), *sys.argv[2:]
    if what == "install":
        name = version()
        install(folder / "versions" / name, rest[0] if rest else "")
        use(folder, name)
    elif what == "use" and rest:
        use(folder, rest[0])
    elif what == "list":
        for name in installed(folder):
            print(f"{'*' if is_used(folder, name) else ' '} {name}")
    else:
        sys.exit(__doc__)


def version(root: Path = _ROOT) -> str:
    """The version of this tree, with the commit if there is one, so that several builds can be installed."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    name: str = project["version"]
    described = ["git", "-C", str(root), "describe", "--always", "--dirty=-changed", "--abbrev=12", "--exclude=*"]
    try:
        commit = subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return name
    return f"{name}-{commit}"


def install(place: Path, extras: str) -> None:
    if (place / _COMPLETE).exists():
        if not place.name.endswith("-changed"):
            print(f"{place} is already installed")
            return
        shutil.rmtree(place)
    elif place.exists():
        shutil.rmtree(place)  # what is left of an installation that was interrupted
    place.parent.mkdir(parents=True, exist_ok=True)
    install_into(place, f"{_ROOT}[{extras}]" if extras else str(_ROOT))
    subprocess.run([str(place / "bin" / "paddock"), "--version"], check=True)
    (place / _COMPLETE).touch()


def use(folder: Path, name: str) -> None:
    """Switch the link atomically. A running server keeps its version."""
    place = folder / "versions" / name
    if not (place / _COMPLETE).exists():
        sys.exit(
            f"{place} is not a complete installation; installed versions: {', '.join(installed(folder)) or 'none'}"
        )
    link, new = folder / "current", folder / f".current.{os.getpid()}"
    is_first = not link.is_symlink()
    new.symlink_to(Path("versions") / name)
    new.replace(link)
    print(f"{link} is {name}." + ("" if is_first else " Restart the service to use it."))


def installed(folder: Path) -> list[str]:
    """Complete installations, the oldest first."""
    found = (folder / "versions").glob(f"*/{_COMPLETE}")
    return [mark.parent.name for mark in sorted(found, key=lambda mark: mark.stat().st_mtime_ns)]


def is_used(folder: Path, name: str) -> bool:
    link = folder / "current"
    return link.is_symlink() and link.resolve().name == name


if __name__ == "__main__":
    main()
