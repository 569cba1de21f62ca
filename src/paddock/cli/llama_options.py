"""The options of llama-server that no setting stands for: accepted but not needed here, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LlamaOption:
    """An option of llama-server that sets nothing here."""

    names: tuple[str, ...]
    arguments: int
    variable: str
    """Its environment variable, or an empty text."""
    reason: str
    is_refused: bool


def _rows(is_refused: bool, reason: str, *specs: str) -> Iterator[LlamaOption]:
    """Options with one reason. A spec has the names, a placeholder for each argument, and the variable."""
    for spec in specs:
        words = spec.split()
        names = tuple(word for word in words if word.startswith("-"))
        variables = [word for word in words if word.startswith(("LLAMA_", "MTMD_"))]
        arguments = len(words) - len(names) - len(variables)
        yield LlamaOption(names, arguments, "".join(variables), reason, is_refused)


def _not_needed(reason: str, *specs: str) -> Iterator[LlamaOption]:
    return _rows(False, reason, *specs)


def _refused(reason: str, *specs: str) -> Iterator[LlamaOption]:
    return _rows(True, reason, *specs)


_MATCHES = "how long a repetition must be before its continuation is guessed is learned from the guesses"
_NO_TOOLS = "this server starts no tools: name MCP servers that are reached over HTTP with --mcp NAME=URL"
_NO_VIDEO = "this server reads images and audio, but no video"

OPTIONS: tuple[LlamaOption, ...] = (
    # ── accepted, not needed ─────────────────────────────────────────────────────────────────────────────────────────
    *_not_needed("timings are always measured", "--perf --no-perf LLAMA_ARG_PERF"),
    *_not_needed("prompts arrive as JSON, which has its own escapes", "-e --escape --no-escape"),
    *_not_needed("libllama no longer defragments its cache", "-dt --defrag-thold N LLAMA_ARG_DEFRAG_THOLD"),
    *_not_needed("the event loop needs no threads per connection", "--threads-http N LLAMA_ARG_THREADS_HTTP"),
    *_not_needed("the log has a format of its own (--log-format)", "--log-prefix --no-log-prefix LLAMA_ARG_LOG_PREFIX"),
    *_not_needed(
        "on a GPU the likeliest tokens are found there by default",
        "-bs --backend-sampling LLAMA_ARG_BACKEND_SAMPLING",
    ),
    *_not_needed(
        "idle prefixes and snapshots are always kept, within --cache-ram",
        "--cache-idle-slots --no-cache-idle-slots LLAMA_ARG_CACHE_IDLE_SLOTS",
    ),
    *_not_needed(
        "checkpoints are placed where prompts differ, at messages and at even distances",
        "-cms --checkpoint-min-step N LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
    ),
    *_not_needed(
        "every request reuses the longest cached prefix, from whichever slot",
        "-sps --slot-prompt-similarity SIMILARITY",
    ),
    *_not_needed(
        "prefixes are shared without it; what follows a change is computed again, since moved cells give other answers",
        "--cache-reuse N LLAMA_ARG_CACHE_REUSE",
    ),
    *_not_needed("the first request is not slower than the next ones", "--warmup --no-warmup"),
    *_not_needed("prompts are cached unless a request says otherwise", "--cache-prompt LLAMA_ARG_CACHE_PROMPT"),
    *_not_needed(
        "the projector runs on the first GPU, or on the CPU with --no-mmproj-offload",
        "-mmdev --mmproj-device DEVICE MTMD_BACKEND_DEVICE",
    ),
    *_not_needed("images are encoded one at a time", "--mtmd-batch-max-tokens N LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"),
    *_not_needed(
        _NO_VIDEO,
        "--video-fps N LLAMA_ARG_VIDEO_FPS",
        "--video-timestamp-interval N LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL",
        "--video-ffmpeg-dir DIR LLAMA_ARG_VIDEO_FFMPEG_DIR",
    ),
    *_not_needed(
        "the web page has no such settings",
        "--ui-config --webui-config JSON LLAMA_ARG_UI_CONFIG",
        "--ui-config-file --webui-config-file FILE LLAMA_ARG_UI_CONFIG_FILE",
    ),
    *_not_needed(_NO_TOOLS, "--no-ui-mcp-proxy --no-webui-mcp-proxy", "-no-ag --no-agent"),
    *_not_needed(
        "the draft model runs on the threads of its model",
        "-td --threads-draft --spec-draft-threads N",
        "-tbd --threads-batch-draft --spec-draft-threads-batch N",
        "-Cd --cpu-mask-draft --spec-draft-cpu-mask M",
        "-Crd --cpu-range-draft --spec-draft-cpu-range RANGE",
        "--cpu-strict-draft --spec-draft-cpu-strict N",
        "--prio-draft --spec-draft-prio N",
        "--poll-draft --spec-draft-poll N",
        "-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch M",
        "--cpu-strict-batch-draft --spec-draft-cpu-strict-batch N",
        "--prio-batch-draft --spec-draft-prio-batch N",
        "--poll-batch-draft --spec-draft-poll-batch N",
    ),
    *_not_needed("drafts have one branch", "--draft-p-split --spec-draft-p-split P LLAMA_ARG_SPEC_DRAFT_P_SPLIT"),
    *_not_needed(
        "draft tokens are sampled on the CPU",
        "--spec-draft-backend-sampling --no-spec-draft-backend-sampling LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
    ),
    *_not_needed("--poll counts for prompts too", "--poll-batch N"),
    *_not_needed("guesses are made by default (--spec-type auto)", "--spec-default"),
    *_not_needed(
        _MATCHES,
        "--spec-ngram-mod-n-min N",
        "--spec-ngram-mod-n-match N",
        "--spec-ngram-simple-size-n N",
        "--spec-ngram-simple-min-hits N",
        "--spec-ngram-map-k-size-n N",
        "--spec-ngram-map-k-min-hits N",
        "--spec-ngram-map-k4v-size-n N",
        "--spec-ngram-map-k4v-min-hits N",
    ),
    # ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────────
    *_refused(
        "guesses come from the texts of requests, not from files",
        "-lcs --lookup-cache-static FILE",
        "-lcd --lookup-cache-dynamic FILE",
    ),
    *_refused(
        "llama-server has removed it",
        "--spec-ngram-size-n N",
        "--spec-ngram-size-m N",
        "--spec-ngram-min-hits N",
    ),
    *_refused(
        "it is for benchmarks of llama-server",
        "--spec-synth-len L LLAMA_ARG_SPEC_SYNTH_LEN",
        "--spec-synth-rates P LLAMA_ARG_SPEC_SYNTH_RATES",
    ),
    *_refused(
        _NO_TOOLS,
        "--ui-mcp-proxy --webui-mcp-proxy LLAMA_ARG_UI_MCP_PROXY",
        "--tools TOOLS LLAMA_ARG_TOOLS",
        "--tools-runtime OPTION LLAMA_ARG_TOOLS_RUNTIME",
        "--mcp-servers-config FILE LLAMA_ARG_MCP_SERVERS_CONFIG",
        "--mcp-servers-json JSON LLAMA_ARG_MCP_SERVERS_JSON",
        "-ag --agent LLAMA_ARG_AGENT",
    ),
    *_refused("use -hf with a repository of the Hugging Face hub", "-dr --docker-repo REPO LLAMA_ARG_DOCKER_REPO"),
    *_refused("--log-prompts writes prompts to the log", "--log-prompts-dir DIR"),
    *_refused("--ctx-size is shared by all requests", "--kv-unified-per-slot N LLAMA_ARG_KV_UNIFIED_PER_SLOT"),
    *_refused(
        "control vectors are not supported; --lora loads adapters",
        "--control-vector FILE",
        "--control-vector-scaled FILE:SCALE",
        "--control-vector-layer-range START END",
    ),
)
