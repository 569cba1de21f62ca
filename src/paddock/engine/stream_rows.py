"""Reads some tokens of a stream straight from the tensors of libllama's cache. Its own functions only read a stream as
a whole, which takes long for a few new tokens of a long conversation.

A stream has one sequence, from which only the last tokens are removed, so its tokens are in its cells one after
another. The tensors are found by their names, and used only if they have the same bytes as the state that libllama
writes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paddock.engine.graph_tensors import graph_tensors
from paddock.engine.libllama import lib
from paddock.engine.state import Span

_FUNCTIONS = ("ggml_backend_tensor_get", "ggml_nbytes")


@dataclass(frozen=True, slots=True)
class StreamRows:
    context: Any
    groups: Sequence[Sequence[int]]
    """The addresses of the tensors of each group of a span, layer by layer."""
    cells: int
    """Of one stream."""

    @classmethod
    def find(
        cls, context: Any, shape: Sequence[tuple[int, int]], compute: Callable[[], None], *, layers: int, streams: int
    ) -> StreamRows | None:
        """`shape` has the layers of each group of a span, and the bytes of a token in one. `compute` makes a step.
        None: the tensors cannot be found, or have another shape.
        """
        if not all(lib.has(name) for name in _FUNCTIONS):
            return None
        names = [f"cache_{kind}_l{layer}".encode() for kind in "kv" for layer in range(layers)]
        found = graph_tensors(context, names, compute)
        tensors = [found[name] for name in names if name in found]
        if not tensors or len(tensors) != sum(count for count, _ in shape):
            return None
        groups: list[list[int]] = []
        cells: set[int] = set()
        for count, row in shape:
            groups.append(tensors[:count])
            tensors = tensors[count:]
            cells |= {lib.ggml_nbytes(tensor) // (row * streams) for tensor in groups[-1]}
            if len(cells) != 1 or any(lib.ggml_nbytes(tensor) % (row * streams) for tensor in groups[-1]):
                return None
        return cls(context, groups, cells.pop())

    def read(self, stream: int, first: int, last: int, into: Span, offset: int) -> None:
        """Copy the tokens `first..last` of a stream into a span, from its token `offset` on."""
        assert 0 <= first < last <= self.cells, f"cells {first} to {last} of {self.cells}"
        lib.llama_synchronize(self.context)
        for tensors, group in zip(self.groups, into, strict=True):
            row = group.strides[1]
            begin, size = (stream * self.cells + first) * row, (last - first) * row
            for tensor, rows in zip(tensors, group, strict=True):
                to = rows[offset : offset + last - first]
                assert to.flags.c_contiguous, "the rows of a layer follow each other"
                lib.ggml_backend_tensor_get(tensor, to.ctypes.data_as(ctypes.c_void_p), begin, size)
