"""Tiny hybrid models with random weights whose recurrent states libllama can roll back: one for each kind of layer.

The state decays slowly, so that a token affects many later ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.tiny_models import _EMBEDDING, _FEED_FORWARD, _HEAD, _KERNEL, _STATE, _File

_GROUPS, _RANK = 2, 4
_INNER = _RANK * _STATE
_CONVOLVED = 3


def delta_net(path: Path) -> None:
    """Gated delta nets, and attention in every second layer."""
    file = _Hybrid(path, "qwen35", layers=4)
    file.describe_attention(heads=2, kv_heads=1)
    file.describe_positions()
    file.describe_groups()
    file._gguf.add_full_attention_interval(2)
    for layer in range(4):
        if layer % 2:
            file.add_gated_attention(layer)
        else:
            file.add_delta_net(layer)
        file.add_norm(f"blk.{layer}.post_attention_norm", _EMBEDDING)
        file.add_matrices(layer)
    file.write()


def mamba2(path: Path) -> None:
    """Each layer is one of: Mamba-2, attention, feed-forward."""
    file = _Hybrid(path, "nemotron_h", layers=4)
    file.describe_attention(heads=2, kv_heads=[0, 1, 0, 0])
    file.describe_groups()
    file._gguf.add_layer_norm_eps(1e-5)
    file.add_mamba2(0)
    file.add_attention(1, heads=2, kv_heads=1)
    file.add_mamba2(2)
    file.add_norm("blk.3.attn_norm", _EMBEDDING)
    file._add_matrix("blk.3.ffn_up", _FEED_FORWARD, _EMBEDDING)
    file._add_matrix("blk.3.ffn_down", _EMBEDDING, _FEED_FORWARD)
    file.write()


def convolution(path: Path) -> None:
    """Short convolutions and attention."""
    file = _Hybrid(path, "lfm2", layers=4)
    file.describe_attention(heads=2, kv_heads=[0, 1, 0, 1])
    file._gguf.add_shortconv_l_cache(_CONVOLVED)
    for layer in range(4):
        if layer % 2:
            file.add_attention(layer, heads=2, kv_heads=1)
            file.add_norm(f"blk.{layer}.attn_q_norm", _HEAD)
            file.add_norm(f"blk.{layer}.attn_k_norm", _HEAD)
        else:
            file.add_convolution(layer)
        file.add_feed_forward(layer)
    file.write()


class _Hybrid(_File):
    def __init__(self, path: Path, architecture: str, *, layers: int) -> None:
        super().__init__(path, architecture, layers=layers)
        if architecture == "nemotron_h":
            self._gguf.kv_data[0].pop(f"{architecture}.feed_forward_length")
            self._gguf.add_feed_forward_length([0] * (layers - 1) + [_FEED_FORWARD])
        if architecture == "lfm2":
            self._gguf.tensors[0]["token_embd_norm.weight"] = self._gguf.tensors[0].pop("output_norm.weight")

    def describe_groups(self) -> None:
        self._gguf.add_ssm_conv_kernel(_KERNEL)
        self._gguf.add_ssm_inner_size(_INNER)
        self._gguf.add_ssm_state_size(_STATE)
        self._gguf.add_ssm_time_step_rank(_RANK)
        self._gguf.add_ssm_group_count(_GROUPS)

    def add_gated_attention(self, layer: int) -> None:
        at = f"blk.{layer}.attn"
        self.add_norm(f"{at}_norm", _EMBEDDING)
        self._add_matrix(f"{at}_q", 2 * 2 * _HEAD, _EMBEDDING)
        self._add_matrix(f"{at}_k", _HEAD, _EMBEDDING)
        self._add_matrix(f"{at}_v", _HEAD, _EMBEDDING)
        self._add_matrix(f"{at}_output", _EMBEDDING, 2 * _HEAD)
        self.add_norm(f"{at}_q_norm", _HEAD)
        self.add_norm(f"{at}_k_norm", _HEAD)

    def add_delta_net(self, layer: int) -> None:
        width = _INNER + 2 * _GROUPS * _STATE
        self.add_norm(f"blk.{layer}.attn_norm", _EMBEDDING)
        self._add_matrix(f"blk.{layer}.attn_qkv", width, _EMBEDDING)
        self._add_matrix(f"blk.{layer}.attn_gate", _INNER, _EMBEDDING)
        at = f"blk.{layer}.ssm"
        self._add_matrix(f"{at}_conv1d", width, _KERNEL)
        self._add(f"{at}_dt.bias", np.zeros(_RANK))
        self._add(f"{at}_a", -self._random.uniform(0.01, 0.1, _RANK))
        self._add_matrix(f"{at}_beta", _RANK, _EMBEDDING)
        self._add_matrix(f"{at}_alpha", _RANK, _EMBEDDING)
        self.add_norm(f"{at}_norm", _STATE)
        self._add_matrix(f"{at}_out", _EMBEDDING, _INNER)

    def add_mamba2(self, layer: int) -> None:
        width = _INNER + 2 * _GROUPS * _STATE
        self.add_norm(f"blk.{layer}.attn_norm", _EMBEDDING)
        at = f"blk.{layer}.ssm"
        self._add_matrix(f"{at}_in", _INNER + width + _RANK, _EMBEDDING, gain=2)
        self._add_matrix(f"{at}_conv1d", width, _KERNEL)
        self._add(f"{at}_conv1d.bias", np.zeros(width))
        self._add(f"{at}_dt.bias", np.zeros(_RANK))
        self._add(f"{at}_a", -self._random.uniform(0.01, 0.1, (_RANK, 1)))
        self._add(f"{at}_d", np.ones((_RANK, 1)))
        self._add(f"{at}_norm.weight", np.ones((_GROUPS, _INNER // _GROUPS)))
        self._add_matrix(f"{at}_out", _EMBEDDING, _INNER)

    def add_convolution(self, layer: int) -> None:
        self.add_norm(f"blk.{layer}.attn_norm", _EMBEDDING)
        at = f"blk.{layer}.shortconv"
        self._add_matrix(f"{at}.conv", _EMBEDDING, _CONVOLVED)
        self._add_matrix(f"{at}.in_proj", 3 * _EMBEDDING, _EMBEDDING)
        self._add_matrix(f"{at}.out_proj", _EMBEDDING, _EMBEDDING)

    def add_matrices(self, layer: int) -> None:
        """A feed-forward network without a norm of its own."""
        at = f"blk.{layer}.ffn"
        self._add_matrix(f"{at}_gate", _FEED_FORWARD, _EMBEDDING)
        self._add_matrix(f"{at}_up", _FEED_FORWARD, _EMBEDDING)
        self._add_matrix(f"{at}_down", _EMBEDDING, _FEED_FORWARD)
