"""Fetches llama.cpp's source: it is part of a source package on the Python index."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from paddock.cli.native.tools import Runner, pip
from paddock.errors import StartupError
from paddock.libraries import Source

_INSIDE = "vendor/llama.cpp/"
# What CMake needs of the 176 MB.
_NEEDED = ("CMakeLists.txt", "LICENSE", "cmake/", "ggml/", "include/", "licenses/", "src/", "tools/mtmd/", "vendor/")


def download(source: Source, folder: Path, run: Runner) -> Path:
    """Download the source package with pip, whose settings name the index. pip checks the hash before it runs any code
    of the package.
    """
    required = folder / "source.txt"
    required.write_text(f"{source.name}=={source.version} --hash=sha256:{source.sha256}\n", "utf-8")
    arguments = ["download", "--no-deps", "--no-binary", source.name, "--require-hashes", "--dest", str(folder)]
    status = run([*pip(folder, run), *arguments, "--requirement", str(required)])
    found = list(folder.glob("*.tar.gz"))
    if status != 0 or not found:
        raise StartupError(
            f"cannot download the source of {source} from the Python index: {run.last_error()}; without a network, "
            "give the file with --source FILE"
        )
    return found[0]


def verify(file: Path, source: Source) -> None:
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StartupError(f"cannot read the source package {file}: {error.strerror}") from None
    if found != source.sha256:
        raise StartupError(
            f"{file.name} is not the source package of {source}: its SHA-256 is {found}, and not {source.sha256}"
        )


def unpack(file: Path, folder: Path) -> Path:
    """Unpack what is compiled. Returns the folder of llama.cpp."""
    try:
        with tarfile.open(file) as archive:
            # Without it in releases of Python that are older than the filter: the hash is known.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
            archive.extractall(folder, _needed(archive))  # noqa: S202 (filtered above)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise StartupError(f"cannot unpack {file.name}: {error}") from None
    for found in folder.glob(f"*/{_INSIDE}CMakeLists.txt"):
        return found.parent
    raise StartupError(f"{file.name} does not contain {_INSIDE}CMakeLists.txt")


def _needed(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        _, found, inside = member.name.partition(f"/{_INSIDE}")
        if found and inside.startswith(_NEEDED):
            yield member


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
