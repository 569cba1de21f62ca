"""Every message between the gateway and a worker: small typed structs, one tagged union for each direction."""

from __future__ import annotations

from typing import Literal

import msgspec

from paddock.errors import PaddockError
from paddock.types import (
    CallDelta,
    EngineOptions,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    SlotState,
    TextLogprobs,
    Timings,
    Usage,
)

PROTOCOL_VERSION = 4


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `PaddockError` on its way to the other process."""

    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: PaddockError) -> Problem:
        return cls(error.code, error.message, error.param, error.retry_after)

    def error(self) -> PaddockError:
        return PaddockError.from_code(self.code, self.message, param=self.param, retry_after=self.retry_after)


# ── gateway → worker ─────────────────────────────────────────────────────────────────────────────────────────────────


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first message on the wire: open this model. A worker of another protocol version refuses."""

    version: int
    model_path: str
    options: EngineOptions


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    request: GenerateRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Nobody is listening to this request any more. Unknown ids are ignored: the two sides race by nature."""

    id: int


class Look(msgspec.Struct, frozen=True, tag="look"):
    """How are the slots? Answered between two steps."""

    id: int


class SlotAction(msgspec.Struct, frozen=True, omit_defaults=True, tag="slot_action"):
    """Save what a slot remembers to a file, restore it from one, or erase it: as soon as the slot is free."""

    id: int
    slot: int
    action: Literal["save", "restore", "erase"]
    folder: str = ""
    filename: str = ""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Exit now; what is still running has already been answered by the gateway."""


ToWorker = Load | Generate | Abort | Look | SlotAction | Stop


# ── worker → gateway ─────────────────────────────────────────────────────────────────────────────────────────────────


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    progress: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    version: int
    info: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    problem: Problem


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The prompt is understood and fits; the request now waits for its turn."""

    id: int
    prompt_tokens: int
    prompt: list[tuple[int, bytes]] | None = None
    """Where it was asked for: the tokens and their names."""


class Delta(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """What one step added to one request. `finish` set means it is the last of that answer."""

    id: int
    text: str
    index: int = 0
    """Which of the request's answers."""
    finish: FinishReason | None = None
    usage: Usage | None = None
    """With the last one and, like `timings`, with each where the request asks for timings per token."""
    logprobs: list[TextLogprobs] | None = None
    prompt_logprobs: list[TextLogprobs] | None = None
    """With an answer's first delta, where asked for: of every prompt token but the first, which follows nothing."""
    tokens: list[int] | None = None
    timings: Timings | None = None
    slot: int = 0
    stop_string: str = ""
    """The one that ended the answer."""
    reasoning: str = ""
    calls: list[CallDelta] | None = None
    malformed: bool = False
    """Something in the answer so far began like a tool call and could not be understood."""


class Step(msgspec.Struct, frozen=True, tag="step"):
    """One frame per engine step, for every request that moved."""

    deltas: list[Delta]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """This request ends here with an error."""

    id: int
    problem: Problem


class Slots(msgspec.Struct, frozen=True, tag="slots"):
    """The answer to a `Look`."""

    id: int
    slots: list[SlotState]
    queued: int


class SlotDone(msgspec.Struct, frozen=True, tag="slot_done"):
    """A `SlotAction` is complete: how many tokens it was about, the file's bytes, and the time without the waiting."""

    id: int
    tokens: int
    size: int = 0
    seconds: float = 0.0


ToGateway = Loading | Ready | LoadFailed | Accepted | Step | Refused | Slots | SlotDone
