"""Facts from a model's header. Nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paddock.fleet.catalogue.gguf import Header

# llama.cpp's file types: how most of the weights are stored.
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
# llama.cpp's vocabulary types.
_VOCABULARIES = {"none": 0, "llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5, "plamo2": 6}


@dataclass(frozen=True, slots=True)
class Description:
    """None for facts that the header does not have."""

    architecture: str | None = None
    quantization: str | None = None
    vocab_type: int | None = None
    n_vocab: int | None = None
    n_ctx_train: int | None = None
    n_embd: int | None = None
    n_params: int | None = None
    size: int | None = None
    """Bytes of the file."""


def describe(header: Header, size: int) -> Description:
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    return Description(
        architecture=architecture,
        quantization=_FILE_TYPES.get(metadata.get("general.file_type", -1)),
        vocab_type=_VOCABULARIES.get(metadata.get("tokenizer.ggml.model", "")),
        n_vocab=header.lengths.get("tokenizer.ggml.tokens"),
        n_ctx_train=_number(metadata.get(f"{architecture}.context_length")),
        n_embd=_number(metadata.get(f"{architecture}.embedding_length")),
        n_params=header.parameters,
        size=size,
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
