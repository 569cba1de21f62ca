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
    Sandbox,
    SandboxState,
    SlotAction,
    SlotState,
    SlotView,
    TextLogprobs,
    TextQuestion,
    Timings,
    TreeView,
    Usage,
)

PROTOCOL_VERSION = 11


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
    sandbox: Sandbox


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """`id` is chosen by the sender, in this message and the next ones; all replies carry it."""

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
    """Nobody is listening to this request any more. Unknown ids are ignored: the two sides race by nature."""

    id: int


class Look(msgspec.Struct, frozen=True, tag="look"):
    """How are the slots? Answered between two steps."""

    id: int


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Somebody looks on: show how things are, at once and each second, a `View` each time. Or nobody does any more."""

    on: bool


class LimitCache(msgspec.Struct, frozen=True, tag="limit_cache"):
    """Keep no more host memory than this for prefixes that nobody runs on, from the next step on."""

    ram_bytes: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Are you still there? Answered at once, whatever the engine is doing."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Exit now; what is still running has already been answered by the gateway."""


ToWorker = Load | Generate | Pool | Ask | ActOnSlot | Abort | Look | Watch | LimitCache | Ping | Stop


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
    progress: PromptProgress | None = None
    """Where asked for, in deltas of their own that come before the first text."""
    reasoning: str = ""
    calls: list[CallDelta] | None = None
    malformed: bool = False
    """Something in the answer so far began like a tool call and could not be understood."""


class Step(msgspec.Struct, frozen=True, tag="step"):
    """One frame per engine step, for every request that moved."""

    deltas: list[Delta]


class Pooling(msgspec.Struct, frozen=True, tag="pooling"):
    """A step begins: for each request with inputs in it, how many tokens of them this and earlier steps compute."""

    tokens: list[tuple[int, int]]


class Pooled(msgspec.Struct, frozen=True, tag="pooled"):
    """The answer to a `Pool`, when all of its inputs are done."""

    id: int
    vectors: list[bytes]
    """For each input the numbers of its vector, or of all of its tokens' vectors: float32, little-endian."""
    width: int
    """How many numbers a vector has."""
    tokens: int
    """How many the inputs have together."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """This request ends here with an error."""

    id: int
    problem: Problem


class Slots(msgspec.Struct, frozen=True, tag="slots"):
    """The answer to a `Look`."""

    id: int
    slots: list[SlotState]
    queued: int


class View(msgspec.Struct, frozen=True, tag="view"):
    """How things are. During a step that is how they were when it began."""

    slots: list[SlotView]
    queued: int
    tree: TreeView | None = None
    """None while it is as it was the last time, and of models without one."""


class SlotDone(msgspec.Struct, frozen=True, tag="slot_done"):
    """An `ActOnSlot` is complete: how many tokens it was about, the file's bytes, and the time without the waiting."""

    id: int
    tokens: int
    size: int = 0
    seconds: float = 0.0


class TokensPart(msgspec.Struct, frozen=True, tag="tokens_part"):
    """The next bytes of the `listed` of a `Tokens` that is still to come, so that no frame is large."""

    id: int
    listed: bytes


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True, tag="tokens"):
    """The answer to `Tokenize` and `CountTokens`."""

    id: int
    count: int
    listed: bytes = b""
    """Of `Tokenize`: the tokens as a JSON array, ready for the response. The gateway never takes it apart."""


class Text(msgspec.Struct, frozen=True, tag="text"):
    """The answer to `Detokenize` and `Render`."""

    id: int
    text: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The answer to a `Ping`: for how many seconds the engine has been in the same step; 0 while it waits."""

    in_step: float


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """What was done since the last such message, and how things stand: now and then, while something is done."""

    tally: Tally
    levels: Levels | None = None
    """None of a worker that is about to leave."""


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
    | View
    | SlotDone
    | TokensPart
    | Tokens
    | Text
    | Beat
    | Stats
)
