"""Create the environment and install Paddock into it, with the progress of compiling llama.cpp.

Usage: python3 tools/bootstrap.py VENV EXTRAS [lab]. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

from libraries import share as share_libraries

_ROOT = Path(__file__).resolve().parent.parent
_STEP = re.compile(r"\[\s*(\d+)/(\d+)\]")
_NEWS = re.compile(r"^\s*(Collecting|Building wheel for|Installing collected packages|Successfully installed)\b")


def main() -> None:
    folder, extras, with_lab = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["lab"]
    if any(folder.glob("lib/python*/site-packages/paddock-[0-9]*.dist-info")):
        # Until 0.1 this project was installed as `paddock`, a name that is another project's on the index.
        subprocess.run(
            [str(folder / "bin" / "python"), "-m", "pip", "uninstall", "--yes", "--quiet", "paddock"], check=True
        )
    lab = ["--editable", str(_ROOT / "lab")] if with_lab else []
    install(folder, "--editable", f"{_ROOT}[{extras}]", *lab)


def install(folder: Path, *wanted: str) -> None:
    """Create an environment in this folder with these requirements. Ends the program on failure."""
    _require_tools()
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"Creating {folder} with Python {platform.python_version()}")
        venv.create(folder, with_pip=True)
    log = folder / "install.log"
    command = [
        str(python), "-m", "pip", "install", "--verbose", "--no-input", "--disable-pip-version-check",
        "--constraint", str(_ROOT / "constraints.txt"), *wanted,
    ]  # fmt: skip
    print("Installing (the first time compiles llama.cpp: five to ten minutes on two cores)")
    status = _run(command, log)
    if status != 0:
        print(f"\nThe installation failed; the end of {log}:", file=sys.stderr)
        print("\n".join(log.read_text("utf-8", "replace").splitlines()[-30:]), file=sys.stderr)
        sys.exit(status)
    for packages in folder.glob("lib/python*/site-packages"):
        share_libraries(packages)


def _require_tools() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 (this file runs before anything has checked)
        sys.exit(
            f"Paddock needs Python 3.11 or newer; this is {platform.python_version()}. Try: make PYTHON=python3.12"
        )
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        sys.exit("Paddock compiles llama.cpp and needs a C++ compiler (Debian: apt-get install g++)")


def _run(command: list[str], log: Path) -> int:
    """Run pip with its output in a log, and one line of progress on the screen."""
    live = sys.stdout.isatty()
    begun = time.monotonic()
    shown = -1
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=_environment()
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if match := _STEP.search(line):
                percent = 100 * int(match[1]) // int(match[2])
                if percent != shown and (live or percent // 10 != shown // 10):
                    shown = percent
                    note = f"  compiling llama.cpp {percent:3d} %  ({time.monotonic() - begun:.0f} s)"
                    print(f"\r{note}" if live else note, end="" if live else "\n", flush=True)
            elif live and shown < 0 and _NEWS.match(line):
                print(f"\r  {line.strip()[:70]:<70}", end="", flush=True)
    if live:
        print()
    return process.wait()


def _environment() -> dict[str, str]:
    """GCC before 11.5, 12.4 and 13.3 drops the stores that set up AMX tiles (GCC bug 114098): llama.cpp then dies of
    SIGILL on its first prompt. Keeping "dead" stores cures it and costs nothing measurable.
    """
    environment = dict(os.environ)
    if _has_amx() and _gcc_drops_tile_setup():
        flags = environment.get("CXXFLAGS", "")
        environment["CXXFLAGS"] = f"{flags} -fno-tree-dse -fno-dse".strip()
    return environment


def _has_amx() -> bool:
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return False


def _gcc_drops_tile_setup() -> bool:
    compiler = os.environ.get("CXX") or "c++"
    try:
        about = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
        number = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
        major, minor = (int(part) for part in number.split(".")[:2])
    except (OSError, subprocess.CalledProcessError, ValueError):
        return False
    return "clang" not in about and (major, minor) < {11: (11, 5), 12: (12, 4), 13: (13, 3)}.get(major, (11, 5))


if __name__ == "__main__":
    main()
