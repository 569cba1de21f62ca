"""Patterns for the names of tensors, and the buffer types that they stand for."""

from __future__ import annotations

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The weights of experts, by llama.cpp's own pattern."""
DENSE = r"\.ffn_(up|down|gate)\."
"""The feed-forward weights of layers without experts."""


def of_first_layers(part: str, layers: int) -> list[tuple[str, str]]:
    """Keeps this part of the first layers in host memory."""
    return [(rf"blk\.{layer}{part}", "CPU") for layer in range(layers)]
