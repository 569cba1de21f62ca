"""Fits a model into the memory that is free when it is loaded."""

from __future__ import annotations

from paddock.fleet.catalogue.model import Model
from paddock.fleet.memory.estimate import estimate_projector
from paddock.fleet.memory.fit import Fit, Fitted, Room

_LEAST_MARGIN = 512 << 20


def fit_model(model: Model, room: Room) -> Fitted:
    """The options with which the model fits, as far as its settings leave them open. Reads the model's header, and
    raises as `Model.header` does.
    """
    header, options = model.header(), model.completed(model.options)
    projector = model.projector_header()
    if projector is not None:
        taken = estimate_projector(projector, options, gpu=room.device is not None)
        device = None if room.device is None else max(room.device - taken.device.total, 0)
        room = Room(device, None if room.host is None else max(room.host - taken.host.total, 0))
    if room.device is not None:
        left = model.freedom.margin if model.freedom.margin is not None else margin(room.device)
        room = Room(max(room.device - left, 0), room.host)
    return Fit(header, model.draft_header(), model.freedom, room).best(options)


def margin(free: int) -> int:
    """What stays free for the driver and for errors of the estimate."""
    return max(_LEAST_MARGIN, free // 20)
