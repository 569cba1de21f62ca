"""Writes a GGUF file with random weights in Q8_0 and the shape of a known model, to measure speed without a download.

    python tools/random_model.py llama-3.1-8b model.gguf

What such a model says is noise. Every byte is a token, so texts have more tokens than with a real vocabulary.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

_BLOCK = 32
"""Weights of a block of Q8_0: a scale of two bytes, then a byte for each."""
_SEED = 1


@dataclass(frozen=True)
class Shape:
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int = 131072


SHAPES = {
    "llama-3.2-1b": Shape(16, 2048, 8192, 32, 8, 128256),
    "llama-3.1-8b": Shape(32, 4096, 14336, 32, 8, 128256),
    "tiny": Shape(2, 256, 512, 4, 2, 512, 65536),
}


def write(shape: Shape, path: Path) -> None:
    head = shape.embedding // shape.heads
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(shape.context)
    file.add_embedding_length(shape.embedding)
    file.add_block_count(shape.layers)
    file.add_feed_forward_length(shape.feed_forward)
    file.add_head_count(shape.heads)
    file.add_head_count_kv(shape.kv_heads)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(500000.0)
    file.add_vocab_size(shape.vocabulary)
    file.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    _add_vocabulary(file, shape.vocabulary)
    weights = _Weights(max(shape.vocabulary, shape.feed_forward) * shape.embedding)
    kv_rows = shape.kv_heads * head
    matrices = {
        "attn_q": (shape.embedding, shape.embedding),
        "attn_k": (kv_rows, shape.embedding),
        "attn_v": (kv_rows, shape.embedding),
        "attn_output": (shape.embedding, shape.embedding),
        "ffn_gate": (shape.feed_forward, shape.embedding),
        "ffn_up": (shape.feed_forward, shape.embedding),
        "ffn_down": (shape.embedding, shape.feed_forward),
    }
    tensors = [("token_embd", (shape.vocabulary, shape.embedding)), ("output", (shape.vocabulary, shape.embedding))]
    tensors += [(f"blk.{layer}.{name}", size) for layer in range(shape.layers) for name, size in matrices.items()]
    for name, (rows, columns) in tensors:
        matrix = weights.matrix(rows, columns)
        if name == "output":
            matrix = _scaled(matrix)
        file.add_tensor(f"{name}.weight", matrix, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    norms = [
        "output_norm",
        *(f"blk.{layer}.{name}" for layer in range(shape.layers) for name in ("attn_norm", "ffn_norm")),
    ]
    for name in norms:
        file.add_tensor(f"{name}.weight", np.ones(shape.embedding, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


class _Weights:
    """Matrices that are views of one random array, each from another place, so that memory holds one of them."""

    def __init__(self, most: int) -> None:
        random = np.random.default_rng(_SEED)
        blocks = np.empty((most // _BLOCK + 4096, 2 + _BLOCK), np.uint8)
        blocks[:, :2] = np.array([0.0002], np.float16).view(np.uint8)
        blocks[:, 2:] = random.integers(0, 256, (len(blocks), _BLOCK), np.uint8)
        self._blocks, self._random = blocks, random

    def matrix(self, rows: int, columns: int) -> npt.NDArray[np.uint8]:
        count = rows * columns // _BLOCK
        start = int(self._random.integers(0, len(self._blocks) - count))
        return self._blocks[start : start + count].reshape(rows, -1)


def _scaled(matrix: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Another scale for each row, so that no two tokens have the same logit."""
    rows = matrix.reshape(len(matrix), -1, 2 + _BLOCK).copy()
    scales = np.linspace(0.0001, 0.0004, len(rows)).astype(np.float16)
    first = np.linspace(0.0001, 0.0004, 997).astype(np.float16)  # few scales are different as float16: two of them are
    rows[:, :, :2] = scales.view(np.uint8).reshape(-1, 1, 2)
    rows[:, 0, :2] = first[np.arange(len(rows)) % len(first)].view(np.uint8).reshape(-1, 2)
    return rows.reshape(matrix.shape)


def _add_vocabulary(file: gguf.GGUFWriter, size: int) -> None:
    """One token for each byte, then words that no text contains, and the end."""
    letters = [chr(code) for code in _byte_letters()]
    fillers = [f"<{number}>" for number in range(size - len(letters) - 2)]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("llama-bpe")
    file.add_token_list([*letters, *fillers, "<|begin_of_text|>", "<|end_of_text|>"])
    file.add_token_types([gguf.TokenType.NORMAL] * (size - 2) + [gguf.TokenType.CONTROL] * 2)
    file.add_token_merges(["<1 >"])  # libllama demands one; no text can use it
    file.add_bos_token_id(size - 2)
    file.add_eos_token_id(size - 1)
    file.add_chat_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")


def _byte_letters() -> list[int]:
    """The printable letter that stands for each byte in vocabularies of this kind, as GPT-2 chose them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    replaced = {byte: 0x100 + number for number, byte in enumerate(others)}
    return [replaced.get(byte, byte) for byte in range(256)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    write(SHAPES[arguments.shape], arguments.file)


if __name__ == "__main__":
    main()
