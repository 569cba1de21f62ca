"""The folder of prefixes on disk."""

from __future__ import annotations

import os
from pathlib import Path


def create_cache_folder(folder: Path) -> str | None:
    """Create the folder for this user only, if it does not exist. Returns why it cannot be used, or None."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"cache_disk (--cache-disk): cannot create the folder {folder}: {error.strerror}"
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return f"cache_disk (--cache-disk): this user cannot write to the folder {folder}"
    return None
