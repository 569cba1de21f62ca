"""What a model is for: its file tells, unless the operator says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.config import ModelSettings
from paddock.errors import ModelLoadFailed, StartupError
from paddock.fleet.catalogue.gguf import Header
from paddock.types import ModelKind, Pooling

# These read an input as a whole and cannot say what comes next.
ENCODERS = frozenset(
    {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
        *("eurobert", "gemma-embedding", "t5encoder"),
    }
)
# In the order of the numbers by which a file names them.
_STATED: tuple[Pooling, ...] = ("none", "mean", "cls", "last", "rank")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the operator says: vectors rather than text, and how they are to be pooled."""

    vectors: bool = False
    pooling: Pooling | None = None

    @classmethod
    def of(cls, settings: ModelSettings) -> Wanted:
        pooling = settings.pooling
        if settings.reranking:
            if pooling not in (None, "rank"):
                raise StartupError(f"reranking and the pooling {pooling!r} contradict each other")
            pooling = "rank"
        return cls(settings.embedding or pooling is not None, pooling)


# What a file may hold that is whole and yet no model, by what it says of itself.
_OTHER_TYPES = {
    "adapter": "it is an adapter for another model (LoRA)",
    "mmproj": "it is the part of a model that reads images or sound",
    "imatrix": "it tells how a model's weights matter, and has none itself",
    "vocab": "it holds a vocabulary and no weights",
}


def why_no_model(header: Header) -> str | None:
    """Why nothing can be loaded from files that are whole, or None."""
    architecture = header.metadata.get("general.architecture")
    kind = "mmproj" if architecture == "clip" else header.metadata.get("general.type")
    if isinstance(kind, str) and kind in _OTHER_TYPES:
        return _OTHER_TYPES[kind]
    if not isinstance(architecture, str):
        return "it does not name its architecture"
    if header.tensor_count == 0:
        return _OTHER_TYPES["vocab"]
    return None


def pooling_of(header: Header, wanted: Wanted) -> Pooling | None:
    """How a model's vectors are pooled; None if it is to generate text. Raises `ModelLoadFailed` for what cannot be."""
    architecture = header.metadata.get("general.architecture")
    number = header.metadata.get(f"{architecture}.pooling_type")
    stated = _STATED[number] if isinstance(number, int) and 0 <= number < len(_STATED) else None
    encodes = architecture in ENCODERS
    if not wanted.vectors and not encodes and stated in (None, "none"):
        return None
    usual: Pooling = "rank" if encodes and header.classifies else "mean"
    pooling = wanted.pooling or stated or usual
    if pooling == "rank" and not header.classifies:
        raise ModelLoadFailed("this model cannot rank: it has no head that would tell a score", param="model")
    return pooling


def kind_of(pooling: Pooling | None) -> ModelKind:
    match pooling:
        case None:
            return "generation"
        case "rank":
            return "reranking"
        case _:
            return "embedding"
