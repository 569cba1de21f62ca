"""Build the wheels and source packages of both distributions: python tools/dist.py [FOLDER].

Each wheel is built from the unpacked source package, so that the source package is known to be complete. Nothing is
downloaded: hatchling is installed in this environment.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PROJECTS = (_ROOT, _ROOT / "lab")
_PAGE = "paddock/page/index.html"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "dist"
    for project in _PROJECTS:
        for path in build(project, folder):
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def build(project: Path, folder: Path) -> tuple[Path, Path]:
    """The source package and the wheel of a project."""
    folder.mkdir(parents=True, exist_ok=True)
    source = _run("sdist", project, folder.absolute())
    with tempfile.TemporaryDirectory() as name, tarfile.open(source) as archive:
        archive.extractall(name, filter="data")
        wheel = _run("wheel", next(Path(name).iterdir()), folder.absolute())
    if project == _ROOT and _PAGE not in zipfile.ZipFile(wheel).namelist():
        sys.exit(f"{wheel} has no {_PAGE}: run `make page`")
    return source, wheel


def _run(target: str, project: Path, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", name]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{project}: {done.stderr or done.stdout}")
        (built,) = Path(name).iterdir()
        return built.replace(folder / built.name)


if __name__ == "__main__":
    main()
