"""Where a model's layers are computed."""

from __future__ import annotations


def computes_on_cpu(n_gpu_layers: int, n_layers: int, *, has_gpu: bool) -> bool:
    """Whether the CPU computes a part of each step. libllama counts the output as one layer more; a negative number
    asks for all of them on the GPU.
    """
    return not has_gpu or 0 <= n_gpu_layers <= n_layers
