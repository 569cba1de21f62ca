"""Tiny projectors with random weights for the models of `tiny_models`: one for each way in which llama.cpp decodes an
image. `picture` makes files that they read.
"""

from __future__ import annotations

import io
import struct
import wave
import zlib
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

TOKENS = 16
"""The tokens of an image, whatever its size, with `llava` and `gemma`."""

_TEXT = 64  # `_EMBEDDING` of tiny_models
_WIDTH, _INNER, _HEADS, _LAYERS = 32, 64, 2, 2


def llava(path: Path) -> None:
    """For `llama`: the tokens of an image are computed like those of a text (LLaVA)."""
    file = _Projector(path, "mlp", image=32, patch=8)
    file.add("v.class_embd", file.random(_WIDTH))
    file.add_vision(positions=17)
    file.add_norm("v.pre_ln")
    file.add_linear("mm.0", _TEXT, _WIDTH)
    file.add_linear("mm.2", _TEXT, _TEXT)
    file.gguf.add_bool("clip.has_llava_projector", True)
    file.write()


def gemma(path: Path) -> None:
    """For `sliding_window`: the tokens of an image attend to each other in both directions (Gemma 3)."""
    file = _Projector(path, "gemma3", image=64, patch=8)
    file.gguf.add_uint32("clip.vision.projector.scale_factor", 2)
    file.add_vision(positions=64)
    file.add_norm("v.post_ln")
    file.add("mm.input_projection.weight", file.random(_WIDTH, _TEXT))
    file.add("mm.soft_emb_norm.weight", np.ones(_WIDTH))
    file.write()


def qwen(path: Path) -> None:
    """For `positions`: the tokens of an image have rows and columns as positions (M-RoPE)."""
    file = _Projector(path, "qwen2vl_merger", image=56, patch=14)
    file.add("v.patch_embd.weight.1", file.random(_WIDTH, 3, 14, 14, gain=0.2))
    file.add_vision(positions=0)
    file.add_norm("v.post_ln")
    file.add_linear("mm.0", 4 * _WIDTH, 4 * _WIDTH)
    file.add_linear("mm.2", _TEXT, 4 * _WIDTH)
    file.write()


def ultravox(path: Path) -> None:
    """For `llama`: it reads audio, in pieces of half a minute (Whisper's encoder)."""
    file = _Projector(path, "ultravox", image=0, patch=0)
    file.gguf.add_uint32("clip.audio.num_mel_bins", 80)
    file.gguf.add_uint32("clip.audio.projector.stack_factor", 32)
    file.add("a.conv1d.1.weight", file.random(_WIDTH, 80, 3))
    file.add("a.conv1d.2.weight", file.random(_WIDTH, _WIDTH, 3))
    for number in (1, 2):
        file.add(f"a.conv1d.{number}.bias", np.zeros((_WIDTH, 1)))
    file.add("a.position_embd.weight", file.random(1500, _WIDTH))
    file.add_layers("a", key_bias=False)
    file.add_norm("a.post_ln")
    file.add("mm.a.mlp.1.weight", file.random(2 * _TEXT, 32 * _WIDTH))
    file.add("mm.a.mlp.2.weight", file.random(_TEXT, _TEXT))
    file.add("mm.a.norm_pre.weight", np.ones(32 * _WIDTH))
    file.add("mm.a.norm_mid.weight", np.ones(_TEXT))
    file.write()


def sound(seed: int, seconds: float = 1.0) -> bytes:
    """A WAV file with noise. It is louder where another seed is not."""
    samples = np.random.default_rng(seed).normal(0, 4000 + 2000 * (seed % 3), int(16000 * seconds)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16000)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def picture(seed: int, width: int = 40, height: int = 40) -> bytes:
    """A PNG file. Pictures with different seeds have different colours everywhere."""
    return png(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


class _Projector:
    def __init__(self, path: Path, kind: str, *, image: int, patch: int) -> None:
        self._random = np.random.default_rng(4)
        self._patch = patch
        self.gguf = gguf.GGUFWriter(path, "clip")
        self.gguf.add_string("clip.projector_type", kind)
        self._is_audio = not image
        name = "audio" if self._is_audio else "vision"
        self.gguf.add_bool(f"clip.has_{name}_encoder", True)
        self.gguf.add_bool("clip.use_gelu", True)
        sizes = {"image_size": image, "patch_size": patch, "embedding_length": _WIDTH, "feed_forward_length": _INNER}
        sizes |= {"block_count": _LAYERS, "projection_dim": _TEXT, "attention.head_count": _HEADS}
        for size, value in sizes.items():
            self.gguf.add_uint32(f"clip.{name}.{size}", value)
        self.gguf.add_float32(f"clip.{name}.attention.layer_norm_epsilon", 1e-5)
        for part in ("image_mean", "image_std"):
            self.gguf.add_array(f"clip.{name}.{part}", [0.5, 0.5, 0.5])

    def add_vision(self, *, positions: int) -> None:
        self.add("v.patch_embd.weight", self.random(_WIDTH, 3, self._patch, self._patch, gain=0.2))
        if positions:
            self.add("v.position_embd.weight", self.random(positions, _WIDTH))
        self.add_layers("v")

    def add_layers(self, prefix: str, *, key_bias: bool = True) -> None:
        for layer in range(_LAYERS):
            at = f"{prefix}.blk.{layer}"
            for part in ("attn_q", "attn_v", "attn_out", *(["attn_k"] if key_bias else [])):
                self.add_linear(f"{at}.{part}", _WIDTH, _WIDTH)
            if not key_bias:
                self.add(f"{at}.attn_k.weight", self.random(_WIDTH, _WIDTH))
            self.add_linear(f"{at}.ffn_up", _INNER, _WIDTH)
            self.add_linear(f"{at}.ffn_down", _WIDTH, _INNER)
            self.add_norm(f"{at}.ln1")
            self.add_norm(f"{at}.ln2")

    def add_linear(self, name: str, rows: int, columns: int) -> None:
        self.add(f"{name}.weight", self.random(rows, columns))
        self.add(f"{name}.bias", np.zeros(rows))

    def add_norm(self, name: str) -> None:
        self.add(f"{name}.weight", np.ones(_WIDTH))
        self.add(f"{name}.bias", np.zeros(_WIDTH))

    def random(self, *shape: int, gain: float = 1.0) -> npt.NDArray[np.float64]:
        return self._random.normal(0, gain / np.sqrt(shape[-1]), shape)

    def add(self, name: str, values: npt.NDArray[np.float64]) -> None:
        self.gguf.add_tensor(name, np.ascontiguousarray(values, np.float32))

    def write(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()
