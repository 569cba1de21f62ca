"""Multimodal projectors: what they read, and which one belongs to a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.fleet.catalogue.gguf import BrokenGGUF, Header
from paddock.fleet.catalogue.headers import read_headers
from paddock.types import MediaKind

if TYPE_CHECKING:
    from paddock.fleet.catalogue.model import Model

_KINDS: dict[MediaKind, str] = {"image": "vision", "audio": "audio"}
# Of several files with the same projector, the one in the usual precision.
_USUAL = re.compile(r"(?<!b)f16", re.IGNORECASE)


def is_projector_header(header: Header) -> bool:
    return header.metadata.get("general.architecture") == "clip" or header.metadata.get("general.type") == "mmproj"


def media_kinds(header: Header) -> tuple[MediaKind, ...]:
    """What a projector reads."""
    return tuple(kind for kind, name in _KINDS.items() if header.metadata.get(f"clip.has_{name}_encoder") is True)


def fitting_projector(model: Model) -> Path | None:
    """The projector beside a model whose embeddings have the size of the model's. None: there is none."""
    if not model.projectors or model.is_fake or model.is_remote or model.kind() != "generation":
        return None
    try:
        metadata = model.header().metadata
    except (BrokenGGUF, OSError):
        return None
    size = metadata.get(f"{metadata.get('general.architecture')}.embedding_length")
    found = [Path(path) for path in model.projectors if size is not None and _output_size(Path(path)) == size]
    return next((path for path in found if _USUAL.search(path.name)), found[0] if found else None)


def _output_size(path: Path) -> object:
    try:
        header = read_headers([path])
    except (BrokenGGUF, OSError):
        return None
    if not is_projector_header(header):
        return None
    sizes = (header.metadata.get(f"clip.{name}.projection_dim") for name in _KINDS.values())
    return next((size for size in sizes if size is not None), None)
