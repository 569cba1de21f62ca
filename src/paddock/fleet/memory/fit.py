"""Fits a model into the free memory: fewer layers on the GPU, experts in host memory, a smaller context. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import msgspec

from paddock.fleet.catalogue.gguf import Header
from paddock.fleet.catalogue.tensor_overrides import EXPERTS, of_first_layers
from paddock.fleet.memory.estimate import (
    Estimate,
    estimate,
    estimate_draft,
    expert_layers,
    layer_count,
    trained_context,
)
from paddock.types import EngineOptions

# libllama rounds contexts up to a multiple of this.
_CELLS = 256


@dataclass(frozen=True, slots=True)
class Freedom:
    """What may be changed so that a model fits: only what the settings leave open."""

    layers: bool = False
    """The number of layers on the GPU."""
    experts: bool = False
    """How many layers have their experts in host memory."""
    draft_layers: bool = False
    context: bool = False
    least_context: int = 4096
    """The smallest context of a request that may be chosen."""
    margin: int | None = None
    """Bytes of the GPU that stay free. None: a part of the memory that is free now."""

    @property
    def is_any(self) -> bool:
        return self.layers or self.context


@dataclass(frozen=True, slots=True)
class Room:
    """The memory that a model may take."""

    device: int | None
    """None: there is no GPU."""
    host: int | None
    """None: without a limit."""


@dataclass(frozen=True, slots=True)
class Fitted:
    options: EngineOptions
    needs: Estimate
    host_experts: int
    """The number of layers whose experts are in host memory because of the fit."""
    is_within: bool
    """Whether it fits into the room."""


class Fit:
    """A model and its draft model, as they may be placed into a room."""

    def __init__(self, header: Header, draft: Header | None, freedom: Freedom, room: Room) -> None:
        self._header, self._draft = header, draft
        self._freedom, self._room = freedom, room
        self._gpu = room.device is not None
        self._layers = layer_count(header)
        self._expert_layers = expert_layers(header) if freedom.experts else 0

    def best(self, options: EngineOptions) -> Fitted:
        """As few changes as possible: all layers on the GPU if they fit; else the experts of the first layers in host
        memory; else fewer layers. If it then takes too much memory, the largest context with which it fits.
        """
        longest = _context(self._header, options)
        first = self._placed(options)
        least = min(self._freedom.least_context * (1 if options.kv_unified else options.parallel), longest)
        if first.is_within or not self._freedom.context or least >= longest:
            return first
        sizes = [least, *range((least // _CELLS + 1) * _CELLS, longest, _CELLS)]
        fitting = bisect_right(sizes, False, key=lambda size: not self._with_context(options, size).is_within)
        return self._with_context(options, sizes[max(fitting - 1, 0)])

    def _with_context(self, options: EngineOptions, n_ctx: int) -> Fitted:
        return self._placed(_changed(options, n_ctx=n_ctx))

    def _placed(self, options: EngineOptions) -> Fitted:
        """The best placement with this context."""
        if self._gpu and self._draft is not None and self._freedom.draft_layers:
            options = self._with_draft_layers(self._draft, options)
        if not self._gpu or not self._freedom.layers or self._fits_device(options):
            return self._fitted(options, 0)
        layers = self._expert_layers
        if layers:
            numbers = range(1, layers + 1)
            count = bisect_left(numbers, True, key=lambda number: self._fits_device(_on_host(options, number))) + 1
            if count <= layers:
                return self._fitted(_on_host(options, count), count)
            options = _on_host(options, layers)
        numbers = range(1, self._layers + 1)
        fitting = bisect_right(numbers, False, key=lambda number: not self._fits_with(options, number))
        return self._fitted(_changed(options, n_gpu_layers=fitting), layers)

    def _with_draft_layers(self, draft: Header, options: EngineOptions) -> EngineOptions:
        """With as many layers of the draft model on the GPU as fit there without the model."""

        def is_too_large(layers: int) -> bool:
            changed = _changed(options, n_gpu_layers_draft=layers)
            return estimate_draft(draft, self._header, changed, gpu=True).device.total > (self._room.device or 0)

        most = layer_count(draft)
        fitting = bisect_right(range(1, most + 1), False, key=is_too_large)
        return options if fitting == most else _changed(options, n_gpu_layers_draft=fitting)

    def _fits_with(self, options: EngineOptions, layers: int) -> bool:
        return self._fits_device(_changed(options, n_gpu_layers=layers))

    def _fits_device(self, options: EngineOptions) -> bool:
        return self._needs(options).device.total <= (self._room.device or 0)

    def _needs(self, options: EngineOptions) -> Estimate:
        found = estimate(self._header, options, gpu=self._gpu)
        if self._draft is not None:
            found += estimate_draft(self._draft, self._header, options, gpu=self._gpu)
        return found

    def _fitted(self, options: EngineOptions, host_experts: int) -> Fitted:
        needs, room = self._needs(options), self._room
        is_within = room.device is None or needs.device.total <= room.device
        is_within &= room.host is None or needs.host.total + needs.process <= room.host
        return Fitted(options, needs, host_experts, is_within)


def _changed(options: EngineOptions, **changes: Any) -> EngineOptions:
    return msgspec.structs.replace(options, **changes)


def _on_host(options: EngineOptions, layers: int) -> EngineOptions:
    """With the experts of the first layers in host memory."""
    return _changed(options, tensor_overrides=[*options.tensor_overrides, *of_first_layers(EXPERTS, layers)])


def _context(header: Header, options: EngineOptions) -> int:
    trained = options.longest_context(trained_context(header) or options.n_ctx)
    return min(options.n_ctx or trained, trained * options.parallel)
