"""What must be equal for two servers to give the same bytes for the same seed, or to use each other's states."""

from __future__ import annotations

import hashlib
from pathlib import Path

import llama_cpp

from paddock.engine import library
from paddock.engine.sampler import PROFILE
from paddock.types import EngineOptions, StateOrigin

ENGINE = f"llama-cpp-python {llama_cpp.__version__}"
_EDGE = 1 << 20
# What changes the order of additions somewhere, and so the last bits of a logit.
_MATTERS = ("n_ubatch", "n_gpu_layers", "n_threads", "flash_attn", "cache_type_k", "cache_type_v", "repack")
# Of these, what a slot's state may differ in: its tokens' keys and values are the same but for the last bits.
_LAST_BITS = ("n_ubatch", "n_gpu_layers", "n_threads", "repack")


def fingerprint(path: Path, options: EngineOptions, *, unified: bool, exact_batch: int) -> str:
    """Of the engine's version, the model's file, the samplers and the options that matter, as they turned out."""
    digest = hashlib.sha256()
    digest.update(f"unified {unified} deterministic {options.deterministic} together {exact_batch > 1} ".encode())
    digest.update(f"{ENGINE} {library.commit()} samplers {PROFILE}".encode())
    digest.update(repr([(name, getattr(options, name)) for name in _MATTERS]).encode())
    digest.update(_edges(path))
    return f"fp_{digest.hexdigest()[:16]}"


def origin(path: Path, options: EngineOptions, *, unified: bool, flash_attn: bool) -> StateOrigin:
    """What a state of this engine depends on, as the context turned out."""
    last_bits = [f"{name} {getattr(options, name)}" for name in _LAST_BITS]
    return StateOrigin(
        engine=ENGINE,
        model=_file_digest(path),
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        flash_attn=flash_attn,
        arithmetic=", ".join([*last_bits, f"kv_unified {unified}"]),
        adapters=tuple(_file_digest(Path(adapter)) for adapter in options.adapters),
    )


def _file_digest(path: Path) -> str:
    return hashlib.sha256(_edges(path)).hexdigest()


def _edges(path: Path) -> bytes:
    """A file's size, its header and its end: enough to tell files apart, without reading gigabytes."""
    with path.open("rb") as file:
        size = path.stat().st_size
        begin = file.read(_EDGE)
        file.seek(max(0, size - _EDGE))
        return f" {size} ".encode() + begin + file.read(_EDGE)
