"""A request as the scheduler sees it: token ids and how far they have come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paddock.errors import PaddockError
from paddock.types import Adapters, DraftParams, FinishReason

# Who had to step back once keeps its next place until it has come this much further, or has regained what it lost.
_RESIDENCE = 32
# With no more than this left to say an answer is better brought to its end.
_NEARLY_DONE = 16


@dataclass(slots=True, eq=False)
class Request:
    id: int
    tokens: list[int]
    """The prompt, shared with other answers to it until the first generated token is appended."""
    sampler: Any
    max_tokens: int
    answer: Any = None
    """What its owner makes of the tokens; nothing to the scheduler."""
    index: int = 0
    """Which of several answers to one prompt."""
    namespace: str | None = ""
    """Whose prefixes it may share; None: it neither reads nor leaves any."""
    wanted_slot: int | None = None
    """The only running place it accepts."""
    deterministic: bool = False
    adapters: Adapters = ()
    """What acts on it besides the model's own weights: computed under one set, a token is of no use under another."""
    prompt_probs: int = -1
    """Every prompt token's probability is wanted, and those of so many likelier ones; -1: none is."""
    key: str = ""
    """For whom it is: those of one key wait for each other, and keys share the model by weight."""
    weight: float = 1.0
    batch: bool = False
    """Nobody waits for the answer."""
    draft: DraftParams | None = None
    """How far its answer may be guessed ahead; None: each token must be seen before the next one is chosen."""

    prompt_size: int = 0
    arrival: int = 0
    slot: int = -1
    sequence: int = -1
    computed: int = 0
    """How many of the tokens have been decoded into the cache."""
    cached: int = 0
    """How many prompt tokens it did not have to compute."""
    judged: int = 0
    """After how many of the tokens it is known how likely the next one was: as far as it has ever come."""
    resumed: int = 0
    """How far it had come when it last got a place."""
    lost: int = 0
    """And how much of that it had to compute again."""
    leader: Request | None = None
    """Another request that is computing a prefix of this one, up to `awaited` tokens."""
    awaited: int = 0
    stops: set[int] = field(default_factory=set)
    """Positions in its prompt that must be the end of a step, because a copy of its memory is wanted just there."""
    preempted: int = 0
    drafted: int = 0
    """How many tokens of the answer were guessed."""
    accepted: int = 0
    """And guessed right."""
    turn: int = 0
    """When it last had one, where requests cannot all share a step."""

    def __post_init__(self) -> None:
        self.prompt_size = len(self.tokens)

    @property
    def computing(self) -> Request:
        """Who computes what it waits for: itself, or the leader of its leaders."""
        request = self
        while request.leader is not None:
            request = request.leader
        return request

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def reach(self) -> int:
        """How many tokens its next chunk may hold."""
        return min((stop for stop in self.stops if stop > self.computed), default=len(self.tokens)) - self.computed

    @property
    def stay(self) -> int:
        """How many tokens further it has come since it has its place."""
        return max(self.judged - self.resumed, 0)

    @property
    def may_step_back(self) -> bool:
        """Whether that would not waste more than it is worth."""
        if self.generating and self.max_tokens - self.produced <= _NEARLY_DONE:
            return False
        return not self.preempted or self.stay >= max(_RESIDENCE, self.lost)

    @property
    def is_judged(self) -> bool:
        """Whether its next tokens are of a prompt whose tokens are asked about, and have not been told about yet."""
        return self.prompt_probs >= 0 and self.judged <= self.computed < self.prompt_size

    @property
    def produced(self) -> int:
        return len(self.tokens) - self.prompt_size

    @property
    def generating(self) -> bool:
        """Only the newest token is left to be computed."""
        return self.pending == 1 and self.produced > 0


@dataclass(slots=True, frozen=True)
class Progress:
    """What a step gave one request: a new token, and the reason if it was the last one."""

    request: Request
    token: int | None
    finish: FinishReason | None
    logprobs: Any = None
    prompt: Sequence[Any] = ()
    """How likely some of the prompt's tokens were, following those of the steps before."""
    error: PaddockError | None = None
    """Why it ends here, without an answer."""
    produced: int = 0
    """Which token of the answer it is: a step may give several."""
