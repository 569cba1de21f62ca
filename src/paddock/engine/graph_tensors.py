"""Finds tensors of a model's graph by their names. libllama has no function for that, but a sampler that is attached to
a context sees each graph when it is built.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from paddock.engine.libllama import lib
from paddock.engine.libllama.sampler_layout import has_sampler_layout
from paddock.engine.libllama.structs import (
    SamplerApply,
    SamplerBuild,
    SamplerChainParams,
    SamplerInit,
    SamplerInterface,
    SamplerName,
)


def graph_tensors(context: Any, names: Iterable[bytes], compute: Callable[[], None]) -> dict[bytes, int]:
    """The addresses of those tensors that are in the graph of a step. `compute` makes one. Empty: this libllama has no
    such samplers.
    """
    if not has_sampler_layout(lib, context):
        return {}
    wanted, found = list(names), dict[bytes, int]()

    def build(_sampler: int, _tensors: int, graph: int, _data: Any) -> None:
        if not found:  # called for each row of each graph
            found.update((name, tensor) for name in wanted if (tensor := lib.ggml_graph_get_tensor(graph, name)))

    interface = SamplerInterface(
        name=SamplerName(lambda _: b"tensors"),
        apply=SamplerApply(lambda *_: None),
        backend_init=SamplerInit(lambda *_: True),
        backend_apply=SamplerBuild(build),
    )
    chain = lib.llama_sampler_chain_init(SamplerChainParams(no_perf=True))
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init(ctypes.byref(interface), None))
    try:
        if lib.llama_set_sampler(context, 0, chain):
            compute()
    finally:
        lib.llama_set_sampler(context, 0, None)
        lib.llama_sampler_free(chain)
    return found
