"""A request as the scheduler sees it: token ids and how many of them are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paddock.errors import PaddockError
from paddock.scheduling.context_shift import ContextShift
from paddock.types import Adapters, DraftParams, FinishReason, MediaSpan, Nearest, ReusedTokens

# A request that was preempted keeps its next slot for at least this many new tokens, or as many as it lost.
_MIN_RESIDENCE = 32
# A request with at most this many tokens left is not preempted.
_NEARLY_DONE = 16


@dataclass(slots=True, eq=False)
class Request:
    id: int
    tokens: list[int]
    """The prompt. All answers to one prompt share this list until their first generated token."""
    sampler: Any
    max_tokens: int
    answer: Any = None
    """The caller's own object. The scheduler does not use it."""
    index: int = 0
    """The number of this answer among several to one prompt."""
    namespace: str | None = ""
    """Requests share prefixes within a namespace. None: the request neither reads nor stores prefixes."""
    wanted_slot: int | None = None
    """The only slot it accepts."""
    deterministic: bool = False
    adapters: Adapters = ()
    """The LoRA adapters that apply. Tokens computed under one set cannot be reused under another."""
    system_size: int = 0
    """So many of its first tokens are a system text, which later prompts may have too; 0: unknown."""
    prompt_probs: int = -1
    """Report the probability of every prompt token, and of this many top alternatives. -1: do not."""
    key: str = ""
    """The API key. Requests of one key queue behind each other; keys share the model by weight."""
    weight: float = 1.0
    batch: bool = False
    """Low priority: no user waits for the answer."""
    draft: DraftParams | None = None
    """Limits for speculative decoding. None: do not speculate."""
    shift: ContextShift | None = None
    """What to drop when the context is full. None: the answer ends there."""
    media: tuple[MediaSpan, ...] = ()
    """Images and sound in the prompt, in order. They are computed in steps of their own."""

    prompt_size: int = 0
    """How many of the tokens are the prompt. After a context shift: all that were left."""
    given_size: int = 0
    """How many tokens the client's prompt has."""
    shifted_answer: int = 0
    """Generated tokens before the last context shift."""
    arrival: int = 0
    slot: int = -1
    sequence: int = -1
    computed: int = 0
    """How many of the tokens are in the cache."""
    cached: int = 0
    """How many prompt tokens came from the cache."""
    from_host: int = 0
    """How many of those were restored from host memory, with those that were read from disk first."""
    from_disk: int = 0
    """How many of those were read from disk for it."""
    nearest: Nearest = field(default_factory=Nearest)
    """The cached sequence that shared most with the prompt when it started."""
    furthest: int = 0
    """The largest value that `computed` has had, also before a preemption."""
    admitted_at: int = 0
    """The value of `furthest` when the request last got a slot."""
    lost: int = 0
    """How many of those tokens it had to compute again."""
    leader: Request | None = None
    """Another request that is computing a prefix of this one, up to `awaited` tokens."""
    awaited: int = 0
    snapshot_points: set[int] = field(default_factory=set)
    """Prompt positions where a step must end, because a snapshot is taken there."""
    preempted: int = 0
    drafted: int = 0
    """How many tokens of the answer were drafted."""
    accepted: int = 0
    """How many drafted tokens were accepted."""
    guesser: Any = None
    """What guesses its next tokens. The scheduler sets it."""
    last_turn: int = 0
    """When it was last part of a step, where requests cannot all share one."""

    def __post_init__(self) -> None:
        self.prompt_size = self.given_size = len(self.tokens)

    @property
    def root_leader(self) -> Request:
        """The request that computes what this one waits for, following leaders of leaders; itself if it has none."""
        request = self
        while request.leader is not None:
            request = request.leader
        return request

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def max_chunk(self) -> int:
        """How many tokens its next chunk may hold: up to the next snapshot point, up to where text or an image begins,
        or all.
        """
        points = [point for point in self.snapshot_points if point > self.computed]
        points += [end for span in self.media for end in (span.start, span.end) if end > self.computed]
        return min(points, default=len(self.tokens)) - self.computed

    @property
    def next_media(self) -> MediaSpan | None:
        """The image or sound whose tokens are next to compute. None: text is next."""
        return next((span for span in self.media if span.start <= self.computed < span.end), None)

    def outside_media(self, length: int) -> int:
        """The most of the first `length` tokens that do not end within an image or sound."""
        return next((span.start for span in self.media if span.start < length < span.end), length)

    @property
    def new_tokens(self) -> int:
        """How many tokens it has computed for the first time since it got its slot."""
        return max(self.furthest - self.admitted_at, 0)

    @property
    def is_preemptible(self) -> bool:
        """Whether a preemption would waste less than it gains."""
        if self.is_generating and self.max_tokens - self.produced <= _NEARLY_DONE:
            return False
        return not self.preempted or self.new_tokens >= max(_MIN_RESIDENCE, self.lost)

    @property
    def needs_prompt_probs(self) -> bool:
        """Whether its next tokens are prompt tokens whose probabilities are wanted and not reported yet."""
        return self.prompt_probs >= 0 and self.furthest <= self.computed < self.prompt_size

    @property
    def produced(self) -> int:
        return self.shifted_answer + len(self.tokens) - self.prompt_size

    @property
    def expected_left(self) -> int:
        """How many more tokens its answer gets, about. Nobody knows, so as many as it has, within its limit: then what
        is bought for the rest of an answer costs at most twice what it would if its end were known.
        """
        return min(self.max_tokens - self.produced, self.produced)

    @property
    def reused(self) -> ReusedTokens:
        """The prompt tokens that came from the cache, by tier."""
        disk = min(self.from_disk, self.cached)
        host = min(self.from_host, self.cached)
        return ReusedTokens(self.cached - max(host, disk), max(host - disk, 0), disk)

    @property
    def is_shifted(self) -> bool:
        return self.shifted_answer > 0

    def drop(self, places: range) -> None:
        """Drop tokens from the middle. The others become a new prompt, which nothing of is computed."""
        self.shifted_answer = self.produced
        self.tokens = self.tokens[: places.start] + self.tokens[places.stop :]
        self.prompt_size = len(self.tokens)
        self.computed = self.furthest = 0
        self.prompt_probs = -1  # they are reported
        self.snapshot_points.clear()

    @property
    def is_constrained(self) -> bool:
        """A grammar or schema decides which tokens are allowed."""
        return self.sampler is not None and self.sampler.grammar is not None

    @property
    def is_generating(self) -> bool:
        """Only the newest generated token is left to compute."""
        return self.pending == 1 and self.produced > 0


@dataclass(slots=True, frozen=True)
class Progress:
    """What one step gave one request: a token, and the finish reason if it was the last."""

    request: Request
    token: int | None
    finish: FinishReason | None
    logprobs: Any = None
    prompt: Sequence[Any] = ()
    """Probabilities of the next prompt tokens, in order."""
    error: PaddockError | None = None
    """Why the request failed."""
    produced: int = 0
    """The number of this token in the answer. A step can give several."""
    end: int | None = None
    """The token that ended the answer. It is not part of it."""
    computed: int = 0
    """How many tokens of the request were in the cache then."""
    truncated: bool = False
    """The context is full with this token, or an earlier part of it was dropped."""
