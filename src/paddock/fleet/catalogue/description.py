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
# llama.cpp's words for those types whose words differ from the short name.
_FILE_TYPE_WORDS = {
    "F32": "all F32", "Q2_K": "Q2_K - Medium", "Q2_K_S": "Q2_K - Small", "Q3_K_S": "Q3_K - Small",
    "Q3_K_M": "Q3_K - Medium", "Q3_K_L": "Q3_K - Large", "Q4_K_S": "Q4_K - Small", "Q4_K_M": "Q4_K - Medium",
    "Q5_K_S": "Q5_K - Small", "Q5_K_M": "Q5_K - Medium", "MXFP4_MOE": "MXFP4 MoE", "TQ1_0": "TQ1_0 - 1.69 bpw ternary",
    "TQ2_0": "TQ2_0 - 2.06 bpw ternary", "IQ1_S": "IQ1_S - 1.5625 bpw", "IQ1_M": "IQ1_M - 1.75 bpw",
    "IQ2_XXS": "IQ2_XXS - 2.0625 bpw", "IQ2_XS": "IQ2_XS - 2.3125 bpw", "IQ2_S": "IQ2_S - 2.5 bpw",
    "IQ2_M": "IQ2_M - 2.7 bpw", "IQ3_XXS": "IQ3_XXS - 3.0625 bpw", "IQ3_XS": "IQ3_XS - 3.3 bpw",
    "IQ3_S": "IQ3_S - 3.4375 bpw", "IQ3_M": "IQ3_S mix - 3.66 bpw", "IQ4_NL": "IQ4_NL - 4.5 bpw",
    "IQ4_XS": "IQ4_XS - 4.25 bpw",
}  # fmt: skip
# llama.cpp's vocabulary types.
_VOCABULARIES = {"none": 0, "llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5, "plamo2": 6}


@dataclass(frozen=True, slots=True)
class Description:
    """None for facts that the header does not have."""

    architecture: str | None = None
    quantization: str | None = None
    ftype: str | None = None
    """The quantisation in llama.cpp's words: `Q4_K - Medium`."""
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
    quantization = _FILE_TYPES.get(metadata.get("general.file_type", -1))
    return Description(
        architecture=architecture,
        quantization=quantization,
        ftype=None if quantization is None else _FILE_TYPE_WORDS.get(quantization, quantization),
        vocab_type=_VOCABULARIES.get(metadata.get("tokenizer.ggml.model", "")),
        n_vocab=header.lengths.get("tokenizer.ggml.tokens"),
        n_ctx_train=_number(metadata.get(f"{architecture}.context_length")),
        n_embd=_number(metadata.get(f"{architecture}.embedding_length")),
        n_params=header.parameters,
        size=size,
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
