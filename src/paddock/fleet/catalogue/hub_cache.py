"""The hub's own cache on this machine, which llama-server and other programs fill: its files need no download."""

from __future__ import annotations

import os
from pathlib import Path


def cached_file(repository: str, commit: str, name: str) -> Path | None:
    path = _folder(repository) / "snapshots" / commit / name
    return path if path.is_file() else None


def snapshot(repository: str, revision: str | None) -> Path | None:
    """The folder with the files of a commit, branch or tag; None: of the main branch. None if there is none."""
    folder = _folder(repository)
    revision = revision or "main"
    reference = folder / "refs" / revision
    try:
        commit = reference.read_text("ascii").strip() if reference.is_file() else revision
    except (OSError, ValueError):
        return None
    path = folder / "snapshots" / commit
    return path if path.is_dir() else None


def link(source: Path, target: Path) -> None:
    """Link the file instead of copying it. A hard link stays when the cache is emptied."""
    real = os.path.realpath(source)
    target.unlink(missing_ok=True)
    try:
        os.link(real, target)
    except OSError:
        target.symlink_to(real)


def _folder(repository: str) -> Path:
    from huggingface_hub import constants

    cache = os.environ.get("LLAMA_CACHE") or constants.HF_HUB_CACHE
    return Path(cache).expanduser() / f"models--{repository.replace('/', '--')}"
