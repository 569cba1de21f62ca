"""Build the web page from web/, or check its source and that the package has the built files.

The built files are part of the repository, so that serving them needs no Node. Without Node nothing is checked.
"""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WEB = Path(__file__).parents[1] / "web"
BUILT = WEB.parent / "src" / "paddock" / "page"
OLDEST_NODE = (20, 19)


def main() -> None:
    match sys.argv[1:]:
        case ["build"]:
            problem = _missing()
            if problem is not None:
                sys.exit(problem)
            _install()
            _npm("run", "build")
        case ["check"]:
            problem = _missing()
            if problem is None:
                _check()
            else:
                print(f"The web page is not checked: {problem}")
        case _:
            sys.exit("page.py build|check")


def _check() -> None:
    _install()
    _npm("run", "check")
    _npm("run", "test")
    with tempfile.TemporaryDirectory() as folder:
        _npm("run", "build", "--", "--outDir", folder)
        differing = _differences(filecmp.dircmp(folder, BUILT))
    if differing:
        sys.exit(f"src/paddock/page differs from the build of web/ (run `make page`): {', '.join(differing)}")


def _differences(compared: filecmp.dircmp[str]) -> list[str]:
    # Names first; then contents, since dircmp itself is satisfied with equal sizes and times.
    found = [*compared.left_only, *compared.right_only]
    _, unequal, unreadable = filecmp.cmpfiles(compared.left, compared.right, compared.common_files, shallow=False)
    found += [*unequal, *unreadable]
    for below in compared.subdirs.values():
        found += _differences(below)
    return sorted(found)


def _missing() -> str | None:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return "there is no Node here"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if tuple(int(part) for part in version.removeprefix("v").split(".")[:2]) < OLDEST_NODE:
        return f"Node {version} is older than {'.'.join(map(str, OLDEST_NODE))}"
    return None


def _install() -> None:
    """Install the packages of the lock file once."""
    lock, installed = WEB / "package-lock.json", WEB / "node_modules" / ".installed"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        _npm("ci")
        installed.touch()


def _npm(*arguments: str) -> None:
    finished = subprocess.run(["npm", "--silent", *arguments], cwd=WEB, stdin=subprocess.DEVNULL)
    if finished.returncode != 0:
        sys.exit(f"npm {' '.join(arguments)} failed")


if __name__ == "__main__":
    main()
