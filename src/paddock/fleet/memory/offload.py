"""Chooses the number of GPU layers for `-ngl auto`."""

from __future__ import annotations

import msgspec

from paddock.fleet.catalogue.kinds import pooling_of
from paddock.fleet.catalogue.model import Model
from paddock.fleet.memory.estimate import estimate_draft, layers_that_fit

_LEAST_MARGIN = 512 << 20


def fitting_layers(model: Model, free_gpu_bytes: int) -> int:
    """The most layers, counting the output as one, that leave a margin of free memory for the driver and for errors of
    the estimate. Reads the model's header, and raises as `Model.header` does.
    """
    room = free_gpu_bytes - margin(free_gpu_bytes)
    if room <= 0 or model.is_fake:
        return 0
    header = model.header()
    options = msgspec.structs.replace(model.options, pooling=pooling_of(header, model.requested))
    draft = model.draft_header()
    if draft is not None:
        room -= estimate_draft(draft, header, options, gpu=True).device.total
    return layers_that_fit(header, options, room)


def margin(free: int) -> int:
    return max(_LEAST_MARGIN, free // 20)
