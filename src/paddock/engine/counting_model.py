"""A tiny model that counts: the token after N is N + 1. It shows whether a library computes correctly on this CPU.

Its matrices are multiples of the identity in Q8_0, so the right answer is known without another library. Attention and
feed-forward layers are computed and add a little, so a wrong one shows too.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

N_VOCAB = 256
"""Also the size of an embedding."""
N_CTX = 256
_LAYERS, _HEADS = 2, 4
_F32, _Q8_0 = 0, 8
_U32, _FLOAT, _STRING = 4, 6, 8
_ALIGNMENT = 32
_SMALL = 0.01
"""How much layers add to a token's own vector."""


def write_counting_model(path: Path, step: int = 1) -> None:
    """`step`: what it adds."""
    size = N_VOCAB
    identity, norm = np.eye(size, dtype=np.float32), np.ones(size, np.float32)
    tensors: dict[str, npt.NDArray[np.float32]] = {
        "token_embd.weight": identity,
        "output_norm.weight": norm,
        "output.weight": np.roll(identity, step, axis=0),
    }
    for layer in range(_LAYERS):
        at = f"blk.{layer}."
        tensors |= {f"{at}attn_norm.weight": norm, f"{at}ffn_norm.weight": norm}
        tensors |= {f"{at}{name}.weight": identity for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")}
        tensors |= {f"{at}{name}.weight": _SMALL * identity for name in ("attn_output", "ffn_down")}
    metadata: dict[str, str | int | float] = {
        "general.architecture": "llama",
        "llama.block_count": _LAYERS,
        "llama.context_length": N_CTX,
        "llama.embedding_length": size,
        "llama.feed_forward_length": size,
        "llama.attention.head_count": _HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": N_VOCAB,
        "tokenizer.ggml.model": "no_vocab",
    }
    path.write_bytes(_gguf(metadata, tensors))


def _gguf(metadata: dict[str, str | int | float], tensors: dict[str, npt.NDArray[np.float32]]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key)
        if isinstance(value, str):
            head += struct.pack("<I", _STRING) + _string(value)
        else:
            head += struct.pack("<If", _FLOAT, value) if isinstance(value, float) else struct.pack("<II", _U32, value)
    data = b""
    for name, values in tensors.items():
        kind, content = (_F32, values.tobytes()) if values.ndim == 1 else (_Q8_0, _quantized(values))
        head += _string(name) + struct.pack("<I", values.ndim)
        head += struct.pack(f"<{values.ndim}Q", *reversed(values.shape)) + struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % _ALIGNMENT)
    return head + bytes(-len(head) % _ALIGNMENT) + data


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _quantized(matrix: npt.NDArray[np.float32]) -> bytes:
    """In blocks of 32 numbers of 8 bits, each with a scale of 16 bits."""
    blocks = matrix.reshape(-1, 32)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 127
    numbers = np.round(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)).astype(np.int8)
    return np.hstack([scales.astype("<f2").view(np.int8), numbers]).tobytes()
