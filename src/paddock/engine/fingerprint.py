"""Fingerprints: which servers give the same bytes for the same seed, and which can use each other's saved states."""

from __future__ import annotations

import glob
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec

from paddock.engine import library
from paddock.engine.libllama import lib
from paddock.engine.sampler import PROFILE
from paddock.types import EngineOptions, FileStamp, StateOrigin

ENGINE = f"llama.cpp {lib.version}"
_EDGE = 1 << 20
# Options that change the order of additions, and so the last bits of a logit.
_AFFECTS_BITS = (
    *("n_ubatch", "n_gpu_layers", "n_threads", "flash_attn", "cache_type_k", "cache_type_v", "repack"),
    *("n_threads_batch", "tensor_split", "split_mode", "main_gpu", "device", "tensor_overrides", "kv_offload"),
    *("op_offload", "override_kv", "rope_scaling", "rope_freq_scale", "rope_freq_base", "yarn_orig_ctx"),
    *("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"),
)
# Of these, the options in which a saved state may differ: only the last bits of its keys and values change.
_LAST_BITS = ("n_ubatch", "n_gpu_layers", "n_threads", "repack")
# And the options with which it is another state altogether. Unless set, the model's file has their values.
_CHANGES_STATE = (
    *("override_kv", "rope_scaling", "rope_freq_scale", "rope_freq_base", "yarn_orig_ctx", "yarn_ext_factor"),
    *("yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast", "swa_full"),
)
# What a receipt says besides: these decide where an answer ends and how prompts are cut into steps.
_ALSO_SAID = ("n_batch", "parallel", "swa_full", "deterministic")
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_SAMPLES, _SAMPLE = 64, 4096


def fingerprint(path: Path, options: EngineOptions, *, unified: bool, exact_batch: int) -> str:
    """A digest of the build of libllama, the model's file, the samplers and the effective options."""
    digest = hashlib.sha256()
    digest.update(f"unified {unified} deterministic {options.deterministic} together {exact_batch > 1} ".encode())
    digest.update(f"{ENGINE} {lib.commit} build {library.info().build_id} samplers {PROFILE}".encode())
    digest.update(repr([(name, getattr(options, name)) for name in _and_rollback(_AFFECTS_BITS, options)]).encode())
    digest.update(_sample(path))
    if options.mmproj:
        digest.update(repr(_projector(options)).encode())
    return f"fp_{digest.hexdigest()[:16]}"


def origin(
    path: Path, options: EngineOptions, *, unified: bool, flash_attn: bool, beyond_original: bool, has_positions: bool
) -> StateOrigin:
    """What a state of this engine depends on, with the effective options.

    `beyond_original`: a sequence may be longer than the context that the model had before its positions were scaled.
    Some models (Phi-3) rotate all positions by other factors then. `has_positions`: a state holds the positions of its
    tokens. Without them it has fewer bytes for each.
    """
    build = library.info().build_id
    names = _and_rollback(_LAST_BITS, options)
    last_bits = [f"build {build}", *(f"{name} {getattr(options, name)}" for name in names)]
    settings = [
        f"{name} {value}" for name in _CHANGES_STATE if (value := getattr(options, name)) not in (None, [], False)
    ]
    settings += ["beyond the original context"] if beyond_original else []
    settings += ["with positions"] if has_positions else []
    return StateOrigin(
        engine=f"{ENGINE} {lib.commit or build}",
        model=file_digest(path),
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        flash_attn=flash_attn,
        arithmetic=", ".join([*last_bits, f"kv_unified {unified}"]),
        adapters=tuple(file_digest(Path(adapter)) for adapter in options.adapters),
        settings=", ".join(settings),
    )


def decisive_options(
    options: EngineOptions, *, n_ctx: int, unified: bool, flash_attn: bool, exact_batch: int
) -> dict[str, Any]:
    """The effective options that decide the bytes of an answer, as JSON values, for receipts. `n_ctx` is the context of
    a request.
    """
    values = {name: getattr(options, name) for name in (*_ALSO_SAID, *_and_rollback(_AFFECTS_BITS, options))}
    values |= {"n_ctx": n_ctx, "kv_unified": unified, "flash_attn": "on" if flash_attn else "off"}
    values["exact_batch"] = exact_batch
    if options.mmproj:
        values["mmproj"] = _projector(options)
    said: dict[str, Any] = msgspec.to_builtins(values)
    return said


def _and_rollback(names: tuple[str, ...], options: EngineOptions) -> tuple[str, ...]:
    """Where states can be set back, libllama cuts a step into other micro-batches."""
    return (*names, "max_rolled_back") if options.max_rolled_back else names


def _projector(options: EngineOptions) -> list[Any]:
    """What decides the embeddings of an image."""
    return [
        file_digest(Path(options.mmproj)),
        options.mmproj_offload,
        options.image_min_tokens,
        options.image_max_tokens,
    ]


def stamps(path: Path) -> tuple[FileStamp, ...]:
    """The files of a model or an adapter as they are now. Call it before they are loaded."""
    found = [(part, part.stat()) for part in _parts(path)]
    return tuple(FileStamp(str(part), one.st_size, one.st_mtime_ns, one.st_ino) for part, one in found)


def file_digest(path: Path) -> str:
    return hashlib.sha256(_sample(path)).hexdigest()


def _sample(path: Path) -> bytes:
    """The size, the start and the end of a file, and samples between them; of a split model, those of all its files.
    They distinguish models without reading gigabytes: a fine-tuned model differs everywhere, but perhaps not at its
    end.
    """
    return b"".join(_sample_file(part) for part in _parts(path))


def _parts(path: Path) -> list[Path]:
    split = _PART.fullmatch(path.name)
    return [path] if split is None else sorted(path.parent.glob(f"{glob.escape(split[1])}-*-of-{split[2]}.gguf"))


def _sample_file(path: Path) -> bytes:
    with path.open("rb") as file:
        size = path.stat().st_size
        read = [f" {size} ".encode(), file.read(_EDGE)]
        for number in range(1, _SAMPLES + 1):
            file.seek(size * number // (_SAMPLES + 1))
            read.append(file.read(_SAMPLE))
        file.seek(max(0, size - _EDGE))
        return b"".join([*read, file.read(_EDGE)])
