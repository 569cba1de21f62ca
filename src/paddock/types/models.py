"""Engine options and model metadata."""

from __future__ import annotations

from typing import Literal

import msgspec

from paddock.types.sampling import DraftParams

ModelKind = Literal["generation", "embedding", "reranking"]

Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""How the vectors of an input's tokens are pooled: not at all, their mean, the first, the last, or a score from the
model's ranking head.
"""

Reuse = Literal["prefix", "snapshot", "none"]
"""Which part of a cached sequence another request can use: any prefix, only the whole sequence, or nothing."""

Adapters = tuple[tuple[int, float], ...]
"""The active adapters of a model: number and scale, ordered by number. No scale is 0."""


class EngineOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything the engine needs to open a model: no port, no key, nothing of HTTP."""

    n_ctx: int = 16384
    n_batch: int = 2048
    n_ubatch: int = 512
    n_gpu_layers: int = -1
    n_threads: int = 1
    parallel: int = 4
    """How many requests run at once."""
    kv_unified: bool = True
    cont_batching: bool = True
    max_queue: int = 1024
    cache_ram_bytes: int = 0
    """The most host memory for prefixes that nobody runs on."""
    deterministic: bool = False
    flash_attn: Literal["on", "off", "auto"] = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    repack: bool = True
    """Weights rearranged for this CPU's fastest instructions. Off where those instructions turned out not to work."""
    pooling: Pooling | None = None
    """Make vectors of whole inputs, in this way, instead of generating text."""
    chat_template: str = ""
    """In place of the model's own."""
    adapters: tuple[str, ...] = ()
    """Files of LoRA adapters that are loaded with the model; requests say which of them act."""
    model_draft: str = ""
    """The file of a small model with the same vocabulary, which guesses what this one will say."""
    n_gpu_layers_draft: int = -1
    draft: DraftParams = DraftParams()
    devices: str = ""
    """The GPUs that the process may see, as in CUDA_VISIBLE_DEVICES; empty: as its parent does."""
    verbose: bool = False


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Metadata of a loaded model."""

    description: str
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_params: int
    size_bytes: int
    n_slots: int = 1
    fingerprint: str = ""
    """Servers with the same fingerprint give the same bytes for the same seed."""
    engine: str = ""
    """The name and version of the engine."""
    chat_template: str = ""
    bos: str = ""
    eos: str = ""
    reuse: Reuse = "prefix"
    n_cells: int = 0
    kv_unified: bool = True
    bytes_per_token: int = 0
    exact_batch: int = 1
    """The most deterministic answers that may share a step."""
    pooling: Pooling | None = None
    """None: the model generates text."""
    n_embd: int = 0
    """The number of dimensions of its vectors."""
    adapters: tuple[str, ...] = ()
    """The digest of each adapter's file, by the adapter's number."""
    llama_cpp_commit: str = ""
    """The commit of llama.cpp that the library was built from; empty: unknown."""
    sampler_profile: int = 0
    """The version of the samplers. Within one version the same seed gives the same tokens."""
    draft_slots: int = 0
    """The most concurrent answers for which the draft model proposes tokens; 0: no draft model is used."""
