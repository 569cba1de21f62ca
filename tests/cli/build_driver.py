"""Programs that stand in for CMake and compilers, a source package for them, and a process that builds with them."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path

from paddock.cli.native.checking import Checked
from paddock.cli.native.job import Order, run_build
from paddock.libraries import Source, find_library, library_name, this_cpu

# `cmake --build FOLDER` does what the file `mode` beside it says.
_CMAKE = """#!/bin/sh
here=$(dirname "$0")
if [ "$1" != --build ]; then echo "$@" > "$here/configured"; exit 0; fi
echo "[1/4] Building CXX object a.o"
echo "[2/4] Building CXX object b.o"
case $(cat "$here/mode") in
  error) echo "a.cpp:7:1: error: expected ';'"; exit 1 ;;
  wait) echo $$ > "$here/new"; mv "$here/new" "$here/waits"; while :; do echo "[2/4] Building"; sleep 0.1; done ;;
  damaged) mkdir -p "$2/bin"; echo "no library" > "$2/bin/LIBRARY" ;;
  empty) ;;
  *) mkdir -p "$2/bin"; LINKS ;;
esac
echo "[4/4] Linking"
"""


class Toolchain:
    """Programs in a folder. `mode` is what compiling does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.mode = "ok"
        found = find_library()
        assert found is not None
        files = [path for path in found.path.parent.glob("*") if path.is_file() and path != found.path]
        links = [f'ln -s "{found.path}" "$2/bin/{library_name()}"']
        links += [f'ln -s "{path}" "$2/bin/{path.name}"' for path in files if path.name.startswith("lib")]
        script = _CMAKE.replace("LINKS", "; ".join(links)).replace("LIBRARY", library_name())
        for name, text in (
            ("cmake", script),
            ("ninja", "#!/bin/sh\n"),
            ("c++", "#!/bin/sh\necho fake c++ 1.2.3\n"),
            ("cc", "#!/bin/sh\n"),
        ):
            (folder / name).write_text(text, "utf-8")
            (folder / name).chmod(0o755)

    @property
    def mode(self) -> str:
        return (self.folder / "mode").read_text("utf-8").strip()

    @mode.setter
    def mode(self, value: str) -> None:
        (self.folder / "mode").write_text(value, "utf-8")

    @property
    def path(self) -> str:
        """PATH with these programs first."""
        return f"{self.folder}:/usr/bin:/bin"

    @property
    def compiling(self) -> int | None:
        """The process that compiles in the mode `wait`."""
        file = self.folder / "waits"
        return int(file.read_text("utf-8")) if file.exists() else None


def source_package(path: Path, files: tuple[str, ...] = ("CMakeLists.txt", "src/a.cpp", "models/large.gguf")) -> Source:
    """Write a source package, and return what is known of it."""
    with tarfile.open(path, "w:gz") as archive:
        for name in files:
            member = tarfile.TarInfo(f"package-1.0/vendor/llama.cpp/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return Source("package", "1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def accept(_path: Path) -> Checked:
    return Checked(["AVX2"])


def main() -> None:
    folder, package, sha256 = sys.argv[1:]
    order = Order(Path(folder), package=Path(package), source=Source("package", "1.0", sha256))
    run_build(order, this_cpu(), accept)


if __name__ == "__main__":
    main()
