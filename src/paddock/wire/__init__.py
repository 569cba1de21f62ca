"""The process boundary: typed messages and the frames that carry them."""

from paddock.wire.frames import FrameError, FrameReader, encode, reader_for_gateway, reader_for_worker
from paddock.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    Delta,
    Generate,
    Load,
    LoadFailed,
    Loading,
    Problem,
    Ready,
    Refused,
    Step,
    Stop,
    ToGateway,
    ToWorker,
)

__all__ = [
    "PROTOCOL_VERSION",
    "Abort",
    "Accepted",
    "Delta",
    "FrameError",
    "FrameReader",
    "Generate",
    "Load",
    "LoadFailed",
    "Loading",
    "Problem",
    "Ready",
    "Refused",
    "Step",
    "Stop",
    "ToGateway",
    "ToWorker",
    "encode",
    "reader_for_gateway",
    "reader_for_worker",
]
