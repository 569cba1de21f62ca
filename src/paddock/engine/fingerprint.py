"""What must be equal for two servers to give the same bytes for the same seed, as one short word."""

from __future__ import annotations

import hashlib
from pathlib import Path

import llama_cpp

from paddock.engine.sampler import PROFILE
from paddock.types import EngineOptions

_EDGE = 1 << 20
# What changes the order of additions somewhere, and so the last bits of a logit.
_MATTERS = (
    *("n_ubatch", "n_gpu_layers", "n_threads", "flash_attn", "cache_type_k", "cache_type_v"),
    *("kv_unified", "deterministic", "repack"),
)


def fingerprint(path: Path, options: EngineOptions) -> str:
    """Of the engine's version, the model's file, the samplers and the options that matter."""
    digest = hashlib.sha256()
    digest.update(f"llama-cpp-python {llama_cpp.__version__} samplers {PROFILE}".encode())
    digest.update(repr([(name, getattr(options, name)) for name in _MATTERS]).encode())
    with path.open("rb") as file:
        # The header and the end: enough to tell files apart, without reading gigabytes.
        size = path.stat().st_size
        digest.update(f" {size} ".encode() + file.read(_EDGE))
        file.seek(max(0, size - _EDGE))
        digest.update(file.read(_EDGE))
    return f"fp_{digest.hexdigest()[:16]}"
