"""What crosses folders: requests, results and the plan of one engine step. Data only, no behaviour."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "abort"]

ModelKind = Literal["generation", "embedding", "reranking"]

Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""How the vectors of an input's tokens become one: not at all, their mean, the first, the last, or a score by the
model's own head for ranking.
"""

Reuse = Literal["prefix", "snapshot", "none"]
"""What of a sequence's memory can serve another one: any prefix of it, only all of it as it stands, or nothing."""


Adapters = tuple[tuple[int, float], ...]
"""Which of a model's adapters act, by their numbers and in their order, and how strongly; none of them with 0."""


SamplerName = Literal[
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"
]  # fmt: skip


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen. Names, meanings and defaults are llama-server's."""

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_keep: int = 0
    samplers: tuple[SamplerName, ...] = (
        *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    )
    """Which samplers act, in this order."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n_probs: int = -1
    """How many of the likeliest tokens to report beside each chosen one; -1: report nothing."""
    post_sampling_probs: bool = False
    """Report the probabilities that the samplers left, instead of the model's own."""


class Constraint(msgspec.Struct, frozen=True):
    """What an answer must look like, whatever the model would rather say."""

    kind: Literal["json_schema", "regex", "gbnf", "lark"]
    source: str
    param: str
    """The field of the request that asked for it, to be named should it be refused."""
    parts: tuple[Constraint, ...] = ()
    """What a Lark grammar refers to as `@part0`, `@part1` …"""


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may ask its client to call."""

    name: str
    parameters: dict[str, Any]
    """A JSON schema of an object."""
    description: str = ""
    strict: bool = False
    """A call must keep to the schema even where the model is free not to call anything."""


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat", omit_defaults=True):
    """Messages to be rendered by the model's own chat template."""

    messages: list[dict[str, Any]]
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    function: str = ""
    """The one that must be called; empty for any."""
    parallel_calls: bool = True
    """Whether there may be more than one call."""
    ending: Literal["reply", "continue", "none"] = "reply"
    """What comes after the messages: the beginning of a reply, the rest of the last message, or nothing."""
    thinking: bool | None = None
    """None leaves it to the template."""
    thinking_budget: int | None = None
    """A thought of so many tokens is brought to its end."""
    split_reasoning: bool = True
    template_options: dict[str, Any] = {}
    """Further variables of the template."""


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    tokens: list[int]


class MixedPrompt(msgspec.Struct, frozen=True, tag="mixed"):
    """Texts and token ids, one after another."""

    parts: list[str | int]


class InfillPrompt(msgspec.Struct, frozen=True, omit_defaults=True, tag="infill"):
    """What stands before and after the text that is asked for."""

    prefix: str
    suffix: str
    extra: list[tuple[str, str]] = []
    """Names and texts of other files."""
    params: tuple[str, str] = ("prompt", "suffix")
    """The request's fields for the two, to be named should one be refused."""


class InfillTokens(msgspec.Struct, frozen=True):
    """The tokens that stand before a prefix, before a suffix, and before what belongs between them; and, where the
    model was shown whole repositories, before the name of one and before the name of each of its files.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


Prompt = ChatPrompt | TextPrompt | TokenPrompt | MixedPrompt | InfillPrompt


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """For whom a request is, as far as that matters to those who share a model with them."""

    key: str = ""
    """The name of their API key; empty where none is asked for."""
    tenant: str = ""
    """Prefixes are shared within a tenant only."""
    weight: float = 1.0
    """How large their share is beside others'."""
    batch: bool = False
    """Nobody waits for the answer: others go first."""


class DraftParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a draft model guesses ahead. Names and meanings are llama-server's."""

    n_max: int = 4
    """The most tokens at once; 0: none."""
    n_min: int = 0
    """Fewer are not worth checking."""
    p_min: float = 0.75
    """It stops before a token that it thinks less likely than this."""


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One generation as a worker receives it."""

    id: int
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """0: only read the prompt."""
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    n: int = 1
    """How many answers to the one prompt."""
    cache_prompt: bool = True
    id_slot: int | None = None
    deterministic: bool = False
    adapters: Adapters | None = None
    """As the client lists them, or None for those of the model. The fleet makes a set of either, and tells a worker."""
    prompt_probs: int = -1
    """How many of the likeliest tokens to report beside each of the prompt's own; -1: report nothing."""
    echo: bool = False
    """Say which tokens the prompt was read as."""
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    """Say after each step how much of the prompt has been read."""
    min_indent: int = 0
    """The answer ends before a line that is indented by less; its first line is free."""
    max_seconds: float = 0.0
    """After so long an answer ends with its next line; 0: it may take as long as it takes."""
    draft_n_max: int | None = None
    """As of `DraftParams`, and so are the next two; what is None is as the model's operator set it."""
    draft_n_min: int | None = None
    draft_p_min: float | None = None
    origin: Origin = Origin()
    request_id: str = ""
    """What the log calls it."""
    job_id: str = ""
    """What its client calls the job that it belongs to."""


class PairPrompt(msgspec.Struct, frozen=True, tag="pair"):
    """A question and a text that may answer it, to be judged together."""

    query: str
    document: str


class PoolRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inputs of which a model that does not generate makes vectors, or of pairs a score each."""

    id: int
    inputs: list[TextPrompt | TokenPrompt | MixedPrompt | PairPrompt]
    param: str
    """The field of the request that holds them, to be named should one be refused."""
    normalize: int | None = None
    """The p of the norm that vectors are divided by; 0: scaled to 16-bit integers, -1: as they are. Unless given,
    pooled ones are divided by their length.
    """
    dimensions: int | None = None
    """Only so many of each vector's numbers, cut off before it is normalised."""
    origin: Origin = Origin()


class Timings(msgspec.Struct, frozen=True):
    """Seconds from the first step with a part of the prompt to the first token, and from there on."""

    prompt: float = 0.0
    generation: float = 0.0
    drafted: int = 0
    """Tokens that a draft model guessed."""
    accepted: int = 0
    """Those that it guessed right."""


class PromptProgress(msgspec.Struct, frozen=True, array_like=True):
    """How much of a prompt has been read, what of it was known before, and the seconds since its first step."""

    total: int
    cached: int
    processed: int
    seconds: float


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a loaded model says of itself."""

    description: str
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_params: int
    size_bytes: int
    n_slots: int = 1
    fingerprint: str = ""
    """The same where the same seed may be expected to give the same bytes."""
    engine: str = ""
    """What does the arithmetic, and its version."""
    chat_template: str = ""
    bos: str = ""
    eos: str = ""
    reuse: Reuse = "prefix"
    n_cells: int = 0
    kv_unified: bool = True
    bytes_per_token: int = 0
    together: int = 1
    """How many deterministic answers share a step."""
    pooling: Pooling | None = None
    """None: it generates text."""
    n_embd: int = 0
    """How many numbers its vectors have."""
    adapters: tuple[str, ...] = ()
    """A digest of each adapter's file, by its number."""
    drafts_for: int = 0
    """While no more answers than this are under way a draft model guesses ahead; 0: there is none."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of a token, and of the likeliest ones in its place."""

    chosen: float
    top: list[tuple[int, float]]


class TextLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The same for a reader: each token as its id and its bytes."""

    token: int
    piece: bytes
    logprob: float
    top: list[tuple[int, bytes, float]]


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A part of a tool call: the first of each has its id and its name, the others more of the arguments' JSON."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    withdrawn: bool = False
    """It cannot be understood after all. Its text comes as content, and nothing more of it."""


class SlotState(msgspec.Struct, frozen=True):
    """A running place and the request in it, or the last one that was."""

    id: int
    n_ctx: int
    is_processing: bool = False
    n_past: int = 0
    id_task: int = -1
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_computed_tokens: int = 0
    """Of the prompt, so far."""
    n_decoded: int = 0
    max_tokens: int = -1
    """-1: as many as the context has room for."""
    sampling: SamplingParams | None = None
    adapters: Adapters = ()
    timings: Timings = Timings()


class SlotView(msgspec.Struct, frozen=True, array_like=True):
    """What those who look on are shown of a running place: nothing but zeros while it is idle."""

    id: int
    state: Literal["idle", "prompt", "answer"] = "idle"
    prompt_tokens: int = 0
    prompt_done: int = 0
    """How many of them have been read, those that were known among them."""
    cached_tokens: int = 0
    answered_tokens: int = 0
    key: str = ""
    """Whose request it is."""


class SpanView(msgspec.Struct, frozen=True, array_like=True):
    """What they are shown of a span of tokens that is computed once for all who share it."""

    id: int
    parent: int | None
    start: int
    """How many tokens come before it."""
    tokens: int
    hot: bool
    """In cells of a sequence."""
    stored: bool
    """In host memory."""
    slots: list[int]
    """Those that run on it."""
    hits: int
    tenant: str
    """Whose it is."""
    text: str
    """As it begins."""


class TreeView(msgspec.Struct, frozen=True):
    cells: int
    cells_used: int
    stored_limit: int
    """Bytes of host memory."""
    stored_used: int
    spans: list[SpanView]
    """Each after its parent."""
    omitted: int
    """How many more there are."""


class SlotPrefix(msgspec.Struct, frozen=True):
    """The tokens that a slot remembers, and with whom they are shared."""

    tokens: list[int] = []
    namespace: str = ""
    deterministic: bool = False
    adapters: Adapters = ()


class StateOrigin(msgspec.Struct, frozen=True):
    """What keys and values depend on besides their tokens: they are of use only where all of this is the same."""

    engine: str
    model: str
    """A digest of the model's file."""
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool
    arithmetic: str
    """What changes no more than the last bits, and therefore matters to deterministic requests alone."""
    adapters: tuple[str, ...] = ()
    """As of `ModelInfo`; those that act on the tokens matter."""


class EngineOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything the engine needs to open a model: no port, no key, nothing of HTTP."""

    n_ctx: int = 16384
    n_batch: int = 2048
    n_ubatch: int = 512
    n_gpu_layers: int = -1
    n_threads: int = 1
    parallel: int = 4
    """How many requests run at once."""
    kv_unified: bool = True
    continuous_batching: bool = True
    max_queue: int = 1024
    cache_ram_bytes: int = 0
    """The most host memory for prefixes that nobody runs on."""
    deterministic: bool = False
    flash_attn: Literal["on", "off", "auto"] = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    repack: bool = True
    """Weights rearranged for this CPU's fastest instructions. Off where those instructions turned out not to work."""
    pooling: Pooling | None = None
    """Make vectors of whole inputs, in this way, instead of generating text."""
    chat_template: str = ""
    """In place of the model's own."""
    adapters: tuple[str, ...] = ()
    """Files of LoRA adapters that are loaded with the model; requests say which of them act."""
    model_draft: str = ""
    """The file of a small model with the same vocabulary, which guesses what this one will say."""
    n_gpu_layers_draft: int = -1
    draft: DraftParams = DraftParams()
    devices: str = ""
    """The GPUs that the process may see, as in CUDA_VISIBLE_DEVICES; empty: as its parent does."""
    verbose: bool = False


class SnapshotSize(msgspec.Struct, frozen=True):
    """What the whole state of a sequence takes in host memory: bytes, whatever its length, and bytes for each token."""

    fixed: int = 0
    per_token: int = 0
    per_window_token: int = 0
    """In layers that see only the last `window` tokens."""
    window: int = 0


class CacheShape(msgspec.Struct, frozen=True):
    """What the scheduler must know of an engine's memory."""

    cells: int
    """In all; with a stream for each sequence they are divided evenly."""
    unified: bool
    """One pool of cells for all sequences, which can share them, instead of a stream for each."""
    bytes_per_token: int
    """What a token's keys and values take in host memory; 0 where they cannot be kept there."""
    ram_bytes: int = 0
    """The most host memory to keep prefixes in."""
    reuse: Reuse = "prefix"
    """Where a state is more than keys and values by position (sliding windows, recurrent and hybrid models) a part of
    it would be wrong without any error: such a sequence is copied as a whole or not at all.
    """
    snapshot: SnapshotSize = SnapshotSize()
    """What such a copy takes."""
    exact: bool = True
    """Whether a copy goes on as the original does, to the last bit. Where not, deterministic requests use none."""
    least_copied: int = 1
    """Fewer tokens than this are sooner computed than copied from elsewhere."""
    most_copied: int = 1 << 30
    """So many tokens may be copied out between two steps while others wait for the next."""
    spare: int = 0
    """More sequences than can run, for what some have left that is still to be copied out."""
    keeps_answers: bool = True
    """Whether generated tokens are worth copying out, and not sooner computed again."""


# ── one engine step ──────────────────────────────────────────────────────────────────────────────────────────────────


class Drafting(msgspec.Struct, frozen=True):
    """That an answer may be guessed ahead, and how far."""

    tokens: list[int]
    """Prompt and answer so far. Not a copy: the request's own, to which tokens are only ever added."""
    params: DraftParams
    """As its `n_max`, no more than there is room for."""


class Span(msgspec.Struct):
    """Consecutive tokens of one sequence to be decoded in one step.

    `sampler` set means: choose the token that follows the last one, with this request's own sampler.
    """

    sequence: int
    start: int
    tokens: list[int]
    sampler: Any = None
    targets: list[int] = []
    """What follows each of the first tokens in the prompt: how likely was it?"""
    target_probs: int = 0
    """And how likely were so many of the likeliest."""
    drafting: Drafting | None = None
    """With a sampler only."""
    draft: list[int] = []
    """The engine's guess at what follows: computed along, and forgotten from the first wrong one on."""


class Sampled(msgspec.Struct, frozen=True):
    """A chosen token and, where asked for, what else could have been chosen."""

    token: int | None
    """None where only the prompt's own tokens were asked about."""
    logprobs: TokenLogprobs | None = None
    prompt: list[TokenLogprobs] = []
    """One for each of the span's targets."""
    last: bool = False
    """Its constraint is satisfied and allows nothing more."""
    problem: str = ""
    """Why no token could be chosen that keeps to the constraint."""
    drafted: int = 0
    """How many tokens were guessed."""
    more: list[Sampled] = []
    """What was chosen after it: one more for each guess that was right, as that was computed already. Nothing follows
    a token that ends the answer.
    """


class Piece(msgspec.Struct, frozen=True):
    """Part of a span of keys and values in host memory."""

    span: int
    offset: int
    length: int


class Forget(msgspec.Struct, frozen=True):
    """Drop a sequence's cells from `start` on."""

    sequence: int
    start: int = 0


class Fork(msgspec.Struct, frozen=True):
    """Give the sequence `target`, which has as many tokens as `start`, those of `source` from there to `length`."""

    source: int
    target: int
    length: int
    start: int = 0


class Save(msgspec.Struct, frozen=True):
    """Copy the tokens `start..end` of a sequence into host memory under the name `span`."""

    sequence: int
    start: int
    end: int
    span: int


class Restore(msgspec.Struct, frozen=True):
    """Append pieces from host memory to a sequence that holds `start` tokens."""

    sequence: int
    start: int
    pieces: list[Piece]


class Adopt(msgspec.Struct, frozen=True):
    """Keep the tokens `start..end` of a state that `Engine.unpack` made in host memory, under the name `span`."""

    state: Any
    start: int
    end: int
    span: int


class Drop(msgspec.Struct, frozen=True):
    """Free a span of host memory."""

    span: int


Operation = Forget | Fork | Save | Restore | Adopt | Drop
