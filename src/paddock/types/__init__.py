"""Data types that several folders use: requests, results and the plan of one engine step."""

from paddock.types.answers import (
    CallDelta,
    FinishReason,
    PromptProgress,
    ReceiptFacts,
    TextLogprobs,
    TimeParts,
    Timings,
    TokenLogprobs,
    Usage,
)
from paddock.types.formats import STANDARD_FORMATS, objects_in, unknown_formats
from paddock.types.memory import (
    Adopt,
    AdoptCheckpoint,
    CacheShape,
    Copied,
    CopyCheckpoint,
    Drop,
    Forget,
    Fork,
    LoadCheckpoint,
    Operation,
    Piece,
    Reserve,
    Restore,
    Save,
    SaveCheckpoint,
    SlotPrefix,
    SnapshotSize,
    StateOrigin,
)
from paddock.types.models import (
    EMBEDDING_POOLING,
    Adapters,
    CacheType,
    EngineOptions,
    FileStamp,
    FlashAttention,
    LibraryInfo,
    LoadMode,
    ModelInfo,
    ModelKind,
    Numa,
    Pooling,
    Reuse,
    RopeScaling,
    SplitMode,
    StateFormatName,
)
from paddock.types.prompts import (
    ChatPrompt,
    InfillPrompt,
    InfillTokens,
    MediaFile,
    MediaKind,
    MediaPrompt,
    MixedPrompt,
    PairPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Tool,
)
from paddock.types.reports import (
    CacheReason,
    CacheReport,
    MessagePlace,
    Nearest,
    PartingPlace,
    ReportView,
    ReusedTokens,
    TenantCache,
)
from paddock.types.requests import (
    CountTokens,
    Detokenize,
    GenerateRequest,
    Origin,
    PoolRequest,
    Render,
    SlotAction,
    TextQuestion,
    Tokenize,
)
from paddock.types.sampling import (
    Constraint,
    DraftParams,
    SamplerName,
    SamplingParams,
    SpeculationType,
    sampler_letter,
    sampler_named,
)
from paddock.types.sandbox import Sandbox, SandboxMode, SandboxState
from paddock.types.step import Drafting, DraftSource, MediaSpan, Sampled, Span
from paddock.types.templates import BUILTIN_TEMPLATES, DEFAULT_TEMPLATE, check_template, printed_dates
from paddock.types.views import SlotState, SlotView, SpanView, TreeView
