"""What a model is served for: generation, embedding or reranking."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.config import ModelSettings
from paddock.errors import ModelLoadFailed, StartupError
from paddock.fleet.catalogue.gguf import Header
from paddock.types import ModelKind, Pooling

# Encoder-only architectures: they cannot generate text.
ENCODERS = frozenset(
    {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
        *("eurobert", "gemma-embedding", "t5encoder"),
    }
)
# In the order of ggml's pooling types.
_STATED: tuple[Pooling, ...] = ("none", "mean", "cls", "last", "rank")


@dataclass(frozen=True, slots=True)
class RequestedKind:
    """What the operator requests: embeddings instead of text, and the pooling."""

    vectors: bool = False
    pooling: Pooling | None = None

    @classmethod
    def of(cls, settings: ModelSettings) -> RequestedKind:
        pooling = settings.pooling
        if settings.reranking:
            if pooling not in (None, "rank"):
                raise StartupError(f"reranking needs the pooling 'rank', not {pooling!r}")
            pooling = "rank"
        return cls(settings.embedding or pooling is not None, pooling)


# Valid GGUF files that are not models, by general.type.
_OTHER_TYPES = {
    "adapter": "it is a LoRA adapter, not a model",
    "mmproj": "it is a multimodal projector, not a model",
    "imatrix": "it is an importance matrix, not a model",
    "vocab": "it has a vocabulary but no weights",
}


def why_not_a_model(header: Header) -> str | None:
    """Why a valid GGUF file cannot be served as a model, or None."""
    architecture = header.metadata.get("general.architecture")
    kind = "mmproj" if architecture == "clip" else header.metadata.get("general.type")
    if isinstance(kind, str) and kind in _OTHER_TYPES:
        return _OTHER_TYPES[kind]
    if not isinstance(architecture, str):
        return "its header has no general.architecture"
    if header.tensor_count == 0:
        return _OTHER_TYPES["vocab"]
    return None


def pooling_of(header: Header, requested: RequestedKind) -> Pooling | None:
    """The model's pooling; None if it generates text. Raises `ModelLoadFailed` if the model cannot rank."""
    architecture = header.metadata.get("general.architecture")
    number = header.metadata.get(f"{architecture}.pooling_type")
    stated = _STATED[number] if isinstance(number, int) and 0 <= number < len(_STATED) else None
    encodes = architecture in ENCODERS
    if not requested.vectors and not encodes and stated in (None, "none"):
        return None
    usual: Pooling = "rank" if encodes and header.classifies else "mean"
    pooling = requested.pooling or stated or usual
    if pooling == "rank" and not header.classifies:
        raise ModelLoadFailed("this model cannot rerank: it has no classification head", param="model")
    return pooling


def kind_of(pooling: Pooling | None) -> ModelKind:
    match pooling:
        case None:
            return "generation"
        case "rank":
            return "reranking"
        case _:
            return "embedding"
