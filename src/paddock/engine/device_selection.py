"""Finds the most likely tokens of each row where its logits are, so that a GPU need not copy all logits to the host.

libllama lets a sampler add tensors to its graph. A sampler of our own, made of callbacks, is attached to every
sequence. In a selected step the first of them adds one selection for the rows of all sequences: the maxima of groups of
tokens, the best groups, within these the best smaller groups, and their logits. In any other step the samplers change
nothing, and libllama copies the whole rows. Results: docs/lab.md.

A graph is used again while steps have the same shape, and then keeps its kind. So a change of the kind without a change
of the shape must make libllama build the graph anew.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
from paddock.engine.pause import Pause
from paddock.engine.selected_rows import KEPT, RATIO, SelectedRows, group_size, is_selection_of, locate_groups
from paddock.types import EngineOptions, Span

# Set to 0 in the environment of the server: devices never select tokens. 1: also a CPU does, which gains nothing.
DEVICE_SELECTION = "PADDOCK_DEVICE_SELECTION"
_LOGITS = b"result_output"
"""The name of the logits in every graph of a model that generates text."""
_MAX = 0
"""ggml's number of the maximum, as an operation of a pool."""
_FLOAT = 4
_MOST_VIEWS = 32
_LEAST_ROWS = 4
"""With fewer rows, copying them costs less than the selection (docs/lab.md)."""
_REATTACH = 64
"""So many steps must be possible with samplers before they are attached again."""


def wants_selection(options: EngineOptions, *, is_on_gpu: bool) -> bool:
    """Whether to let the device select tokens if it can. Devices of other machines do not say what they can compute."""
    wanted = os.environ.get(DEVICE_SELECTION, "")
    return not options.deterministic and wanted != "0" and (wanted == "1" or (is_on_gpu and not options.rpc))


class _Step(NamedTuple):
    is_selected: bool
    rows: int
    collector: int
    """The sequence whose sampler adds the selection of all rows: the first that has a row."""
    first: int
    """The first token of the batch that has a row."""
    collected: int
    """The token of the batch where the selection is found."""


_NO_STEP = _Step(is_selected=False, rows=0, collector=-1, first=0, collected=0)


class DeviceSelection:
    """The samplers of one context. Used by one thread."""

    def __init__(self, context: Any, *, n_vocab: int, sequences: int, n_ubatch: int, unified: bool) -> None:
        self._context = context
        self._n_vocab, self._n_ubatch, self._unified = n_vocab, n_ubatch, unified
        self._outer = group_size(n_vocab)
        self._inner = self._outer // RATIO
        self._tail = n_vocab % self._outer
        self._per_row = KEPT * self._inner + 1 + self._tail
        self._most_rows = n_vocab // self._per_row  # libllama has room for one row of logits
        self._least_rows = 1  # for the test of one row, see `open`
        self._most_copied = 2 * sequences + 64
        """The most whole rows. libllama pads them, and so needs memory for them twice."""
        self._sequences = sequences
        self._chains: dict[int, Any] = {}
        """The samplers by sequence. Empty: not attached."""
        self._owners: dict[int, int] = {}
        """Their sequences by address."""
        self._interface = SamplerInterface(
            name=SamplerName(lambda _: b"selection"),
            apply=SamplerApply(lambda *_: None),
            backend_init=SamplerInit(self._init),
            backend_apply=SamplerBuild(self._build),
        )
        self._device: Any = None
        self._is_probe = False
        self._is_supported = True
        self._step = _NO_STEP
        self._shape: list[tuple[int, int]] | None = None
        self._is_built_selected = False
        """The kind of the newest graph."""
        self._rows = 0
        """Its rows."""
        self._possible = _REATTACH
        self.pause = Pause()
        self._views: dict[tuple[int, int], npt.NDArray[Any]] = {}

    @classmethod
    def open(cls, context: Any, span: Span, compute: Callable[[Span], None], **shape: Any) -> DeviceSelection | None:
        """Attach samplers to the context, and try a selection of the logits after this span. `compute` decodes it.
        None, with a line in the log: this library, model or device cannot select, or not exactly.
        """
        if not group_size(shape["n_vocab"]):
            return None
        if not has_sampler_layout(lib, context):
            sys.stderr.write("<6>the device does not select tokens: this libllama has no samplers of this kind\n")
            return None
        opened = cls(context, **shape)
        if not opened._attach():
            sys.stderr.write("<6>the device does not select tokens: it lacks an operation\n")
        elif not opened._is_exact(span, compute):
            sys.stderr.write("<4>the device does not select tokens: in a test it did not find the most likely\n")
        else:
            opened._least_rows = 1 if os.environ.get(DEVICE_SELECTION) == "1" else _LEAST_ROWS
            return opened
        opened.close()
        return None

    def close(self) -> None:
        """Before the context is freed."""
        self._detach()

    def prepare(self, spans: Sequence[Span], sizes: Sequence[int], *, select: bool) -> None:
        """Before a step: select if `select` is true and the step allows it. Otherwise all logits are copied."""
        rows = sum((span.sampler is not None) + len(span.draft) + len(span.targets) for span in spans)
        if rows > self._most_copied:
            self._detach()
            self._possible = 0
        elif not self._chains:
            self._possible += 1
            if self._possible < _REATTACH or not self._attach():
                self._step = _NO_STEP._replace(rows=rows)
                return
        is_worth_it = self._least_rows <= rows <= self._most_rows
        select = select and is_worth_it and self.is_one_pass(spans, sizes) and self.pause.has_ended()
        shape = [
            (span.sequence, size if span.sampler is None else -size) for span, size in zip(spans, sizes, strict=True)
        ]
        if self._chains and select != self._is_built_selected and shape == self._shape:
            self._rebuild()
        self._shape = shape
        self._step = _step(spans, sizes, rows, is_selected=select and bool(self._chains))

    def prepare_copies(self) -> None:
        """Before the same step again: all logits are copied."""
        if self._chains and self._is_built_selected:
            self._rebuild()
        self._step = self._step._replace(is_selected=False)

    def is_one_pass(self, spans: Sequence[Span], sizes: Sequence[int]) -> bool:
        """Whether libllama computes the step at once, with the rows in their order."""
        if sum(sizes) > self._n_ubatch or any(span.draft or span.targets for span in spans):
            return False
        if self._unified:
            return True
        first = spans[0].sequence
        is_dense = all(span.sequence == first + place for place, span in enumerate(spans))
        return is_dense and min(sizes) == max(sizes)

    @property
    def is_selected(self) -> bool:
        """Whether the step has selected rows instead of whole ones."""
        return self._step.is_selected

    def selected(self) -> SelectedRows | None:
        """Wait for the selected step. None: the selection is not there, or not valid for a row."""
        step, size = self._step, self._step.rows * self._per_row
        if not self._is_built_selected or lib.llama_get_sampled_logits_count_ith(self._context, step.collected) != size:
            return None
        at = step.collected
        indexes = KEPT * step.rows
        if lib.llama_get_sampled_probs_count_ith(self._context, at) != indexes:
            return None
        numbers = self._view(lib.llama_get_sampled_logits_ith(self._context, at), size, ctypes.c_float)
        outer = self._view(lib.llama_get_sampled_candidates_ith(self._context, at), indexes, ctypes.c_int32)
        inner = self._view(lib.llama_get_sampled_probs_ith(self._context, at), indexes, ctypes.c_int32)
        chosen, sums, tail = np.split(numbers, [indexes * self._inner, indexes * self._inner + step.rows])
        if not np.isfinite(sums).all():
            return None
        return locate_groups(
            outer.reshape(step.rows, KEPT),
            inner.reshape(step.rows, KEPT),
            chosen.reshape(step.rows, KEPT, self._inner),
            tail.reshape(step.rows, self._tail),
            size=self._outer,
            n_vocab=self._n_vocab,
        )

    def copied(self) -> npt.NDArray[np.float32] | None:
        """Wait for the step, and return the whole rows in the order of the batch. None: they are not there."""
        step = self._step
        if not self._chains:
            address = ctypes.cast(lib.llama_get_logits(self._context), ctypes.c_void_p).value
        elif lib.llama_get_sampled_logits_count_ith(self._context, step.first) == self._n_vocab:
            address = lib.llama_get_sampled_logits_ith(self._context, step.first)
        else:
            return None
        rows = self._view(address, step.rows * self._n_vocab, ctypes.c_float)
        return rows.reshape(step.rows, self._n_vocab)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _view(self, address: int | None, size: int, kind: type[Any]) -> npt.NDArray[Any]:
        """Views are kept, because libllama rarely moves its results."""
        assert address is not None, "the counts were checked"
        view = self._views.get((address, size))
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            view = self._views[address, size] = np.ctypeslib.as_array((kind * size).from_address(address))
        return view

    def _attach(self) -> bool:
        self._shape = None
        for sequence in range(self._sequences):
            if not self._attach_one(sequence):
                self._detach()
                return False
        return True

    def _attach_one(self, sequence: int) -> bool:
        """A chain can be attached only once, so this makes a new one."""
        before = self._chains.get(sequence)
        chain = lib.llama_sampler_chain_init(SamplerChainParams(no_perf=True))
        sampler = lib.llama_sampler_init(ctypes.byref(self._interface), None)
        lib.llama_sampler_chain_add(chain, sampler)
        self._owners[sampler] = sequence
        self._chains[sequence] = chain
        self._is_probe = True
        try:
            is_attached = bool(lib.llama_set_sampler(self._context, sequence, chain))
        finally:
            self._is_probe = False
        if before is not None:
            lib.llama_sampler_free(before)
        return is_attached and self._is_supported

    def _detach(self) -> None:
        for sequence, chain in self._chains.items():
            lib.llama_set_sampler(self._context, sequence, None)
            lib.llama_sampler_free(chain)
        self._chains, self._owners = {}, {}

    def _rebuild(self) -> None:
        """Another sampler of one sequence makes libllama plan and build its graphs anew."""
        if not self._attach_one(0):
            self._detach()

    def _is_exact(self, span: Span, compute: Callable[[Span], None]) -> bool:
        self.prepare([span], [len(span.tokens)], select=False)
        compute(span)
        copied = self.copied()
        whole = None if copied is None else copied[0].copy()
        self.prepare([span], [len(span.tokens)], select=True)
        compute(span)
        found = self.selected()
        return found is not None and whole is not None and is_selection_of(found, whole)

    def _init(self, _sampler: int, buffer: int, _outputs: int) -> bool:
        self._device = lib.ggml_backend_buft_get_device(buffer)
        return True

    def _build(self, sampler: int, tensors: int, graph: int, data: Any) -> None:
        """Called for each row of each sequence, in the order of the sequences, while libllama builds a graph."""
        found = data.contents
        if self._is_probe:
            # libllama counts the tensors, in a graph with one row of some length.
            is_expected = bool(found.logits) and not (found.probs or found.sampled or found.candidates)
            self._is_supported = is_expected and self._select(tensors, found, found.logits)
            return
        sequence = self._owners.get(sampler, -1)
        self._is_built_selected = self._step.is_selected
        if self._step.is_selected:
            logits = lib.ggml_graph_get_tensor(graph, _LOGITS) if sequence == self._step.collector else None
            if logits and lib.ggml_nrows(logits) <= self._most_rows:
                self._select(tensors, found, logits)
            else:
                found.logits = None
            return
        if sequence == 0:  # every sequence has a sampler, so each graph begins with this one
            logits = lib.ggml_graph_get_tensor(graph, _LOGITS)
            self._rows = lib.ggml_nrows(logits) if logits else 0
        if self._rows > self._most_copied:
            found.logits = None  # only planned: such a step is computed without samplers

    def _select(self, tensors: int, data: Any, logits: int) -> bool:
        """Add the selection of all rows to the graph. Returns whether the device can compute it."""
        rows = int(lib.ggml_nrows(logits))
        width = int(lib.ggml_nelements(logits)) // rows
        outer, inner = self._outer, self._inner
        body, tail = width - width % outer, width % outer
        parts: list[int] = []
        whole = logits
        if tail:
            whole = lib.ggml_cont(tensors, lib.ggml_view_2d(tensors, logits, body, rows, width * _FLOAT, 0))
            rest = lib.ggml_view_2d(tensors, logits, tail, rows, width * _FLOAT, body * _FLOAT)
            parts.append(lib.ggml_cont(tensors, rest))
        best, groups = _best_groups(tensors, whole, size=outer, columns=body // outer, rows=rows)
        within = lib.ggml_reshape_2d(tensors, groups, outer * KEPT, rows)
        finer, chosen = _best_groups(tensors, within, size=inner, columns=RATIO * KEPT, rows=rows)
        sums = lib.ggml_sum_rows(tensors, logits)
        joined = lib.ggml_reshape_1d(tensors, chosen, inner * KEPT * rows)
        for part, size in [(sums, rows), *((part, tail * rows) for part in parts)]:
            joined = lib.ggml_concat(tensors, joined, lib.ggml_reshape_1d(tensors, part, size), 0)
        data.logits = joined
        data.candidates = lib.ggml_reshape_1d(tensors, best, KEPT * rows)
        data.probs = lib.ggml_reshape_1d(tensors, finer, KEPT * rows)  # integers, which libllama copies as they are
        used = (best, groups, finer, chosen, sums, joined, *parts)
        return self._device is None or all(lib.ggml_backend_dev_supports_op(self._device, tensor) for tensor in used)


def _best_groups(tensors: int, logits: int, *, size: int, columns: int, rows: int) -> tuple[int, int]:
    """The numbers of the groups with the largest logits, and the logits of these groups."""
    maxima = lib.ggml_pool_1d(tensors, logits, _MAX, size, size, 0)
    best = lib.ggml_cont(tensors, lib.ggml_argsort_top_k(tensors, maxima, KEPT))
    groups = lib.ggml_reshape_3d(tensors, logits, size, columns, rows)
    return best, lib.ggml_get_rows(tensors, groups, best)


def _step(spans: Sequence[Span], sizes: Sequence[int], rows: int, *, is_selected: bool) -> _Step:
    """Where libllama leaves the results of the step."""
    first, collected, collector = -1, -1, -1
    at = 0
    for span, size in zip(spans, sizes, strict=True):
        if first < 0 and span.targets:
            first = at
        if span.sampler is not None:
            last = at + len(span.tokens) - 1
            first = last if first < 0 else first
            if collector < 0 or span.sequence < collector:
                collector, collected = span.sequence, last
        at += size
    return _Step(is_selected, rows, collector, first, collected)
