"""Every message between the gateway and a worker: small typed structs, one tagged union for each direction."""

from __future__ import annotations

import msgspec

from paddock.errors import PaddockError
from paddock.tally import Levels, Tally
from paddock.types import (
    CallDelta,
    EngineOptions,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    PoolRequest,
    PromptProgress,
    ReportView,
    Sandbox,
    SandboxState,
    SlotAction,
    SlotState,
    SlotView,
    TenantCache,
    TextLogprobs,
    TextQuestion,
    Timings,
    TreeView,
    Usage,
)

PROTOCOL_VERSION = 14


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `PaddockError` on the wire."""

    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None
    numbers: dict[str, int] = {}

    @classmethod
    def of(cls, error: PaddockError) -> Problem:
        return cls(error.code, error.message, error.param, error.retry_after, error.numbers)

    def error(self) -> PaddockError:
        return PaddockError.from_code(
            self.code, self.message, param=self.param, retry_after=self.retry_after, numbers=self.numbers
        )


# ── gateway → worker ─────────────────────────────────────────────────────────────────────────────────────────────────


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first message: open this model. A worker with another protocol version refuses."""

    version: int
    model_path: str
    options: EngineOptions
    sandbox: Sandbox


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """The sender chooses `id`, here and in the messages below. All replies carry it."""

    id: int
    request: GenerateRequest


class Pool(msgspec.Struct, frozen=True, tag="pool"):
    id: int
    request: PoolRequest


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    id: int
    question: TextQuestion


class ActOnSlot(msgspec.Struct, frozen=True, tag="act_on_slot"):
    """The worker acts as soon as the slot is free."""

    id: int
    action: SlotAction


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Cancel a request. Unknown ids are ignored: the request may have ended."""

    id: int


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Get the state of the slots. Answered between two steps."""

    id: int


class LookAtCache(msgspec.Struct, frozen=True, tag="look_at_cache"):
    """Get what is cached for each tenant. Answered between two steps."""

    id: int


class ClearCache(msgspec.Struct, frozen=True, tag="clear_cache"):
    """Drop what is cached and not in use, in cells and in host memory."""

    id: int
    tenant: str | None = None
    """None: of all tenants."""


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Start or stop sending a `View` at once and every second."""

    on: bool


class LimitCache(msgspec.Struct, frozen=True, tag="limit_cache"):
    """Host memory limit for idle prefixes, in bytes, from the next step on."""

    ram_bytes: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Health check. Answered at once, even during a step."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Exit. The gateway has already answered the running requests."""

    flush_seconds: float = 0.0
    """First write prefixes to disk, for at most so long."""


ToWorker = (
    Load
    | Generate
    | Pool
    | Ask
    | ActOnSlot
    | Abort
    | Look
    | LookAtCache
    | ClearCache
    | Watch
    | LimitCache
    | Ping
    | Stop
)


# ── worker → gateway ─────────────────────────────────────────────────────────────────────────────────────────────────


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    progress: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    version: int
    info: ModelInfo
    sandbox: SandboxState


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    problem: Problem


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The prompt is valid and fits into the context. The request is queued."""

    id: int
    prompt_tokens: int
    prompt: list[tuple[int, bytes]] | None = None
    """The tokens and their names, if the request asks for them."""


class Delta(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """What one step added to one answer. The last delta of an answer has `finish`."""

    id: int
    text: str
    index: int = 0
    """The number of the answer."""
    finish: FinishReason | None = None
    usage: Usage | None = None
    """In the last delta; in every delta, like `timings`, if the request asks for timings per token."""
    logprobs: list[TextLogprobs] | None = None
    prompt_logprobs: list[TextLogprobs] | None = None
    """In the first delta, if requested: of every prompt token except the first."""
    tokens: list[int] | None = None
    timings: Timings | None = None
    slot: int = 0
    stop_string: str = ""
    """The stop string that ended the answer."""
    progress: PromptProgress | None = None
    """If requested, in separate deltas before the first text."""
    reasoning: str = ""
    calls: list[CallDelta] | None = None
    malformed: bool = False
    """A part of the answer began like a tool call but could not be parsed."""


class Step(msgspec.Struct, frozen=True, tag="step"):
    """The deltas of all requests in one engine step."""

    deltas: list[Delta]


class Pooling(msgspec.Struct, frozen=True, tag="pooling"):
    """A step begins. For each request in it: its id, and its tokens that this and earlier steps compute."""

    tokens: list[tuple[int, int]]


class Pooled(msgspec.Struct, frozen=True, tag="pooled"):
    """The answer to a `Pool`."""

    id: int
    vectors: list[bytes]
    """For each input its vector, or the vectors of all its tokens: float32, little-endian."""
    width: int
    """The dimensions of a vector."""
    tokens: int
    """Tokens of all inputs."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request ends with an error."""

    id: int
    problem: Problem


class Slots(msgspec.Struct, frozen=True, tag="slots"):
    """The answer to a `Look`."""

    id: int
    slots: list[SlotState]
    queued: int


class CacheContents(msgspec.Struct, frozen=True, tag="cache_contents"):
    """The answer to a `LookAtCache`, and to a `ClearCache`: what is left."""

    id: int
    tenants: list[TenantCache]


class View(msgspec.Struct, frozen=True, tag="view"):
    """State of the worker for the live view; during a step, the state when it began."""

    slots: list[SlotView]
    queued: int
    tree: TreeView | None = None
    """None if it has not changed since the last view, or the model has no prefix cache."""
    reports: list[ReportView] | None = None
    """Why the last prompts were or were not cached. None if there is no new one."""


class SlotDone(msgspec.Struct, frozen=True, tag="slot_done"):
    """An `ActOnSlot` is complete: the number of tokens, the size of the file, and the time without waiting."""

    id: int
    tokens: int
    size: int = 0
    seconds: float = 0.0


class TokensPart(msgspec.Struct, frozen=True, tag="tokens_part"):
    """The next bytes of `listed`, before the `Tokens` with the last ones, so that no frame is large."""

    id: int
    listed: bytes


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True, tag="tokens"):
    """The answer to `Tokenize` and `CountTokens`."""

    id: int
    count: int
    listed: bytes = b""
    """For `Tokenize`: the tokens as a JSON array. The gateway copies it into the response without parsing it."""
    n_ctx: int = 0
    """For `CountTokens`: the context of one request; 0: not known."""


class Text(msgspec.Struct, frozen=True, tag="text"):
    """The answer to `Detokenize` and `Render`."""

    id: int
    text: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The answer to a `Ping`: seconds that the engine has been in the same step; 0 while it waits."""

    in_step: float


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Counts since the last such message, and gauges. Sent while the worker is in use."""

    tally: Tally
    levels: Levels | None = None
    """None if the worker is about to exit."""


ToGateway = (
    Loading
    | Ready
    | LoadFailed
    | Accepted
    | Step
    | Pooling
    | Pooled
    | Refused
    | Slots
    | CacheContents
    | View
    | SlotDone
    | TokensPart
    | Tokens
    | Text
    | Beat
    | Stats
)
