"""What a model is opened with, and what it says of itself."""

from __future__ import annotations

from typing import Literal

import msgspec

from paddock.types.sampling import DraftParams

ModelKind = Literal["generation", "embedding", "reranking"]

Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""How the vectors of an input's tokens become one: not at all, their mean, the first, the last, or a score by the
model's own head for ranking.
"""

Reuse = Literal["prefix", "snapshot", "none"]
"""What of a sequence's memory can serve another one: any prefix of it, only all of it as it stands, or nothing."""

Adapters = tuple[tuple[int, float], ...]
"""Which of a model's adapters act, by their numbers and in their order, and how strongly; none of them with 0."""


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
    """What a loaded model says of itself."""

    description: str
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_params: int
    size_bytes: int
    n_slots: int = 1
    fingerprint: str = ""
    """The same where the same seed may be expected to give the same bytes."""
    engine: str = ""
    """What does the arithmetic, and its version."""
    chat_template: str = ""
    bos: str = ""
    eos: str = ""
    reuse: Reuse = "prefix"
    n_cells: int = 0
    kv_unified: bool = True
    bytes_per_token: int = 0
    together: int = 1
    """How many deterministic answers share a step."""
    pooling: Pooling | None = None
    """None: it generates text."""
    n_embd: int = 0
    """How many numbers its vectors have."""
    adapters: tuple[str, ...] = ()
    """A digest of each adapter's file, by its number."""
    llama_cpp_commit: str = ""
    """Of which llama.cpp was built, as far as the library says so."""
    sampler_profile: int = 0
    """The version of the samplers: the same seed gives the same tokens within one."""
    drafts_for: int = 0
    """While no more answers than this are under way a draft model guesses ahead; 0: there is none."""
