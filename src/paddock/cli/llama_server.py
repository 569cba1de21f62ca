"""llama-server's command line: the options that no setting stands for, its environment variables and its presets.

Every option of llama-server is one of: a flag of a setting (`Flag` in `paddock.config`), accepted but not needed here,
or refused by name before anything is loaded. `paddock serve` therefore never meets an unknown option of llama-server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from paddock.cli.request_defaults import DEFAULTS

_TRUE, _FALSE = frozenset({"on", "enabled", "true", "1"}), frozenset({"off", "disabled", "false", "0"})
_IGNORED = "paddock.cli.llama_server.ignored"


@dataclass(frozen=True, slots=True)
class LlamaOption:
    """An option of llama-server that sets nothing here."""

    names: tuple[str, ...]
    arguments: int
    variable: str
    """Its environment variable, or an empty text."""
    reason: str
    is_refused: bool
    harmless: frozenset[str] = frozenset()
    """Values with which a refused option is accepted, since they ask for what happens anyway."""


def _rows(is_refused: bool, reason: str, *specs: str, harmless: str = "") -> Iterator[LlamaOption]:
    """Options with one reason. A spec has the names, a placeholder for each argument, and the variable."""
    for spec in specs:
        words = spec.split()
        names = tuple(word for word in words if word.startswith("-"))
        variables = [word for word in words if word.startswith(("LLAMA_", "MTMD_"))]
        arguments = len(words) - len(names) - len(variables)
        yield LlamaOption(names, arguments, "".join(variables), reason, is_refused, frozenset(harmless.split()))


def _not_needed(reason: str, *specs: str) -> Iterator[LlamaOption]:
    return _rows(False, reason, *specs)


def _refused(reason: str, *specs: str, harmless: str = "") -> Iterator[LlamaOption]:
    return _rows(True, reason, *specs, harmless=harmless)


_NO_NGRAMS = "drafts come from a draft model only: give one with --model-draft"
_NO_TOOLS = "this server runs no tools and no MCP servers: the client runs the tools that a model calls"
_NO_MEDIA = "this server reads text only"

OPTIONS: tuple[LlamaOption, ...] = (
    # ── accepted, not needed ─────────────────────────────────────────────────────────────────────────────────────────
    *_not_needed("timings are always measured", "--perf --no-perf LLAMA_ARG_PERF"),
    *_not_needed("prompts arrive as JSON, which has its own escapes", "-e --escape --no-escape"),
    *_not_needed("libllama no longer defragments its cache", "-dt --defrag-thold N LLAMA_ARG_DEFRAG_THOLD"),
    *_not_needed("the event loop needs no threads per connection", "--threads-http N LLAMA_ARG_THREADS_HTTP"),
    *_not_needed("the log has a format of its own (--log-format)", "--log-prefix --no-log-prefix LLAMA_ARG_LOG_PREFIX"),
    *_not_needed("every log line has its time", "--log-timestamps --no-log-timestamps LLAMA_ARG_LOG_TIMESTAMPS"),
    *_not_needed("log lines are coloured on a terminal only", "--log-colors MODE LLAMA_ARG_LOG_COLORS"),
    *_not_needed("tokens are sampled on the CPU", "-bs --backend-sampling LLAMA_ARG_BACKEND_SAMPLING"),
    *_not_needed(
        "idle prefixes and snapshots are always kept, within --cache-ram",
        "--cache-idle-slots --no-cache-idle-slots LLAMA_ARG_CACHE_IDLE_SLOTS",
        "-ctxcp --ctx-checkpoints --swa-checkpoints N LLAMA_ARG_CTX_CHECKPOINTS",
        "-cms --checkpoint-min-step N LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
    ),
    *_not_needed("every request reuses the longest cached prefix", "-sps --slot-prompt-similarity SIMILARITY"),
    *_not_needed(
        "prefixes are shared without it; later chunks of a changed prompt are computed again",
        "--cache-reuse N LLAMA_ARG_CACHE_REUSE",
    ),
    *_not_needed("the context is not shifted", "--no-context-shift"),
    *_not_needed("the first request is not slower than the next ones", "--warmup --no-warmup"),
    *_not_needed("chat templates are always rendered by Jinja", "--jinja --no-jinja LLAMA_ARG_JINJA"),
    *_not_needed("models are loaded at their first request", "--models-autoload LLAMA_ARG_MODELS_AUTOLOAD"),
    *_not_needed("prompts are cached unless a request says otherwise", "--cache-prompt LLAMA_ARG_CACHE_PROMPT"),
    *_not_needed(
        "the chat template decides which reasoning it shows the model",
        "--reasoning-preserve --no-reasoning-preserve LLAMA_ARG_REASONING_PRESERVE",
    ),
    *_not_needed("a last message of the assistant is continued", "--prefill-assistant LLAMA_ARG_PREFILL_ASSISTANT"),
    *_not_needed("answers are parsed", "--no-skip-chat-parsing"),
    *_not_needed(
        _NO_MEDIA,
        "--mmproj-auto --no-mmproj --no-mmproj-auto LLAMA_ARG_MMPROJ_AUTO",
        "--mmproj-offload --no-mmproj-offload LLAMA_ARG_MMPROJ_OFFLOAD",
        "-mmdev --mmproj-device DEVICE MTMD_BACKEND_DEVICE",
        "--image-min-tokens N LLAMA_ARG_IMAGE_MIN_TOKENS",
        "--image-max-tokens N LLAMA_ARG_IMAGE_MAX_TOKENS",
        "--mtmd-batch-max-tokens N LLAMA_ARG_MTMD_BATCH_MAX_TOKENS",
        "--video-fps N LLAMA_ARG_VIDEO_FPS",
        "--video-timestamp-interval N LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL",
        "--video-ffmpeg-dir DIR LLAMA_ARG_VIDEO_FFMPEG_DIR",
        "--media-path DIR",
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
    *_not_needed(
        "the kernel schedules the threads; `n_threads` says how many there are",
        "--cpu-strict N",
        "--cpu-strict-batch N",
        "--prio N",
        "--prio-batch N",
        "--poll N",
        "--poll-batch N",
    ),
    *_not_needed("the whole prompt is kept, since the context is not shifted", "--keep N"),
    *_not_needed(
        "-ngl auto fits the layers into the free memory of the GPU",
        "-fit --fit MODE LLAMA_ARG_FIT",
        "-fitt --fit-target MIB LLAMA_ARG_FIT_TARGET",
        "-fitc --fit-ctx N LLAMA_ARG_FIT_CTX",
    ),
    *_not_needed("tags are for llama-server's router", "--tags TAGS LLAMA_ARG_TAGS"),
    *_not_needed(
        "allowed pages may use every method and header of the API",
        "--cors-methods METHODS LLAMA_ARG_CORS_METHODS",
        "--cors-headers HEADERS LLAMA_ARG_CORS_HEADERS",
        "--cors-credentials --no-cors-credentials LLAMA_ARG_CORS_CREDENTIALS",
    ),
    # ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────────
    *_refused(
        "start the server with taskset(1) or numactl(8)",
        *(
            f"{flag} CPUS"
            for flag in ("-C --cpu-mask", "-Cr --cpu-range", "-Cb --cpu-mask-batch", "-Crb --cpu-range-batch")
        ),
    ),
    *_refused("`paddock doctor` lists the devices", "--list-devices"),
    *_refused(
        "RPC servers are not supported; `replicas` and `paddock cluster` use other machines",
        "--rpc SERVERS LLAMA_ARG_RPC",
    ),
    *_refused('`eval "$(_PADDOCK_COMPLETE=bash_source paddock)"` completes commands', "--completion-bash"),
    *_refused("use -hf REPO:QUANTISATION, or `paddock pull` and --model", "-hff --hf-file FILE LLAMA_ARG_HF_FILE"),
    *_refused("-hf uses an earlier download if the hub cannot be reached", "--offline LLAMA_ARG_OFFLINE"),
    *_refused("redirect stderr, or use the journal of systemd", "--log-file FILE LLAMA_ARG_LOG_FILE"),
    *_refused("serve other files with a web server", "--path DIR LLAMA_ARG_STATIC_PATH"),
    *_refused("let a reverse proxy remove the prefix", "--api-prefix PREFIX LLAMA_ARG_API_PREFIX"),
    *_refused(
        "write the models into the configuration (`model_manager.models`)",
        "--models-preset FILE LLAMA_ARG_MODELS_PRESET",
    ),
    *_refused(
        "the draft model is placed as its model is; --gpu-layers-draft says how many layers are on the GPU",
        "-otd --override-tensor-draft --spec-draft-override-tensor OVERRIDES",
        "-cmoed --cpu-moe-draft --spec-draft-cpu-moe LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
        "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe N LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
        "-devd --device-draft --spec-draft-device DEVICES",
    ),
    *_refused(
        "the draft model's cache has the types of its model's",
        "-ctkd --cache-type-k-draft --spec-draft-type-k TYPE LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
        "-ctvd --cache-type-v-draft --spec-draft-type-v TYPE LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
        harmless="f16",
    ),
    *_refused(
        "give the repositories with -hf and, after `paddock pull`, --model-draft",
        "--fim-qwen-7b-spec",
        "--fim-qwen-14b-spec",
    ),
    *_refused("use `paddock models` to list models", "-cl --cache-list"),
    *_refused(
        _NO_NGRAMS,
        "--spec-ngram-mod-n-min N",
        "--spec-ngram-mod-n-max N",
        "--spec-ngram-mod-n-match N",
        "--spec-ngram-simple-size-n N",
        "--spec-ngram-simple-size-m N",
        "--spec-ngram-simple-min-hits N",
        "--spec-ngram-map-k-size-n N",
        "--spec-ngram-map-k-size-m N",
        "--spec-ngram-map-k-min-hits N",
        "--spec-ngram-map-k4v-size-n N",
        "--spec-ngram-map-k4v-size-m N",
        "--spec-ngram-map-k4v-min-hits N",
        "-lcs --lookup-cache-static FILE",
        "-lcd --lookup-cache-dynamic FILE",
        "--spec-default",
    ),
    *_refused(_NO_NGRAMS, "--spec-type TYPES LLAMA_ARG_SPEC_TYPE", harmless="none draft-simple"),
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
    *_refused(_NO_MEDIA, "-mm --mmproj FILE LLAMA_ARG_MMPROJ", "-mmu --mmproj-url URL LLAMA_ARG_MMPROJ_URL"),
    *_refused("download the file and give it with --model", "-mu --model-url URL LLAMA_ARG_MODEL_URL"),
    *_refused("use -hf with a repository of the Hugging Face hub", "-dr --docker-repo REPO LLAMA_ARG_DOCKER_REPO"),
    *_refused(
        "download the draft model with `paddock pull` and give its file with --model-draft",
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf REPO LLAMA_ARG_SPEC_DRAFT_HF_REPO",
    ),
    *_refused("--log-prompts writes prompts to the log", "--log-prompts-dir DIR"),
    *_refused("reasoning ends without a message", "--reasoning-budget-message TEXT LLAMA_ARG_THINK_BUDGET_MESSAGE"),
    *_refused(
        "use --reasoning-format none, and leave tools out of requests",
        "--skip-chat-parsing LLAMA_ARG_SKIP_CHAT_PARSING",
    ),
    *_refused("requests say so with continue_final_message: false", "--no-prefill-assistant"),
    *_refused("special tokens are not part of answers", "-sp --special"),
    *_refused("answers end at the end of the context", "--context-shift LLAMA_ARG_CONTEXT_SHIFT"),
    *_refused("the models of a folder are loaded at their first request", "--no-models-autoload"),
    *_refused(
        "start one server on the port; `replicas` of a model use more processes", "--reuse-port LLAMA_ARG_REUSE_PORT"
    ),
    *_refused("--ctx-size is shared by all requests", "--kv-unified-per-slot N LLAMA_ARG_KV_UNIFIED_PER_SLOT"),
    *_refused("adaptive-p sampling is not supported", "--adaptive-target N", "--adaptive-decay N"),
    *_refused("infill prompts have the order prefix, suffix, middle", "--spm-infill"),
    *_refused(
        "control vectors are not supported; --lora loads adapters",
        "--control-vector FILE",
        "--control-vector-scaled FILE:SCALE",
        "--control-vector-layer-range START END",
    ),
)

# llama-server's ready-made configurations, as the arguments that they stand for.
_CODER = "--hf-repo ggml-org/{} --port 8012 --ubatch-size 1024 --batch-size 1024 --ctx-size 0"
_GPT_OSS = (
    "--hf-repo ggml-org/{} --port 8013 --ubatch-size 2048 --batch-size 32768 --parallel 2 --ctx-size 262144 "
    "--temp 1.0 --top-p 1.0 --top-k 0 --min-p 0.01"
)
PRESETS: Mapping[str, str] = {
    "--embd-gemma-default": (
        "--hf-repo ggml-org/embeddinggemma-300M-qat-q4_0-GGUF --port 8011 --ubatch-size 2048 --batch-size 2048 "
        "--parallel 32 --ctx-size 65536 --embedding"
    ),
    "--fim-qwen-1.5b-default": _CODER.format("Qwen2.5-Coder-1.5B-Q8_0-GGUF"),
    "--fim-qwen-3b-default": _CODER.format("Qwen2.5-Coder-3B-Q8_0-GGUF"),
    "--fim-qwen-7b-default": _CODER.format("Qwen2.5-Coder-7B-Q8_0-GGUF"),
    "--fim-qwen-30b-default": _CODER.format("Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF"),
    "--gpt-oss-20b-default": _GPT_OSS.format("gpt-oss-20b-GGUF"),
    "--gpt-oss-120b-default": _GPT_OSS.format("gpt-oss-120b-GGUF"),
    "--vision-gemma-4b-default": "--hf-repo ggml-org/gemma-3-4b-it-qat-GGUF --port 8014 --ctx-size 0",
    "--vision-gemma-12b-default": "--hf-repo ggml-org/gemma-3-12b-it-qat-GGUF --port 8014 --ctx-size 0",
}

# The variables of the options that a setting stands for, each with one of the option's flags.
_VARIABLES: Mapping[str, str] = {
    "LLAMA_API_KEY": "--api-key",
    "LLAMA_ARG_ALIAS": "--alias",
    "LLAMA_ARG_API_KEY_FILE": "--api-key-file",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_CACHE_RAM": "--cache-ram",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    "LLAMA_ARG_CHAT_TEMPLATE": "--chat-template",
    "LLAMA_ARG_CHAT_TEMPLATE_FILE": "--chat-template-file",
    "LLAMA_ARG_CONT_BATCHING": "--cont-batching",
    "LLAMA_ARG_CORS_ORIGINS": "--cors-origins",
    "LLAMA_ARG_CPU_MOE": "--cpu-moe",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_DEVICE": "--device",
    "LLAMA_ARG_DRAFT_MAX": "--draft-max",
    "LLAMA_ARG_DRAFT_MIN": "--draft-min",
    "LLAMA_ARG_EMBEDDINGS": "--embeddings",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
    "LLAMA_ARG_ENDPOINT_PROPS": "--props",
    "LLAMA_ARG_ENDPOINT_SLOTS": "--slots",
    "LLAMA_ARG_FLASH_ATTN": "--flash-attn",
    "LLAMA_ARG_HF_REPO": "--hf-repo",
    "LLAMA_ARG_HOST": "--host",
    "LLAMA_ARG_KV_OFFLOAD": "--kv-offload",
    "LLAMA_ARG_KV_UNIFIED": "--kv-unified",
    "LLAMA_ARG_LAZY_MODE": "--lazy-mode",
    "LLAMA_ARG_LOAD_MODE": "--load-mode",
    "LLAMA_ARG_LOG_JSONL": "--log-jsonl",
    "LLAMA_ARG_LOG_VERBOSITY": "--log-verbosity",
    "LLAMA_ARG_MAIN_GPU": "--main-gpu",
    "LLAMA_ARG_MODEL": "--model",
    "LLAMA_ARG_MODELS_DIR": "--models-dir",
    "LLAMA_ARG_MODELS_MAX": "--models-max",
    "LLAMA_ARG_NO_HOST": "--no-host",
    "LLAMA_ARG_NUMA": "--numa",
    "LLAMA_ARG_N_CPU_FFN": "--n-cpu-ffn",
    "LLAMA_ARG_N_CPU_MOE": "--n-cpu-moe",
    "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers",
    "LLAMA_ARG_N_GPU_LAYERS_DRAFT": "--n-gpu-layers-draft",
    "LLAMA_ARG_N_PARALLEL": "--parallel",
    "LLAMA_ARG_OVERRIDE_TENSOR": "--override-tensor",
    "LLAMA_ARG_POOLING": "--pooling",
    "LLAMA_ARG_PORT": "--port",
    "LLAMA_ARG_REPACK": "--repack",
    "LLAMA_ARG_RERANKING": "--reranking",
    "LLAMA_ARG_ROPE_FREQ_BASE": "--rope-freq-base",
    "LLAMA_ARG_ROPE_FREQ_SCALE": "--rope-freq-scale",
    "LLAMA_ARG_ROPE_SCALE": "--rope-scale",
    "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "--model-draft",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "--draft-max",
    "LLAMA_ARG_SPEC_DRAFT_N_MIN": "--draft-min",
    "LLAMA_ARG_SPEC_DRAFT_P_MIN": "--draft-p-min",
    "LLAMA_ARG_SPLIT_MODE": "--split-mode",
    "LLAMA_ARG_SSL_CERT_FILE": "--ssl-cert-file",
    "LLAMA_ARG_SSL_KEY_FILE": "--ssl-key-file",
    "LLAMA_ARG_SWA_FULL": "--swa-full",
    "LLAMA_ARG_TENSOR_SPLIT": "--tensor-split",
    "LLAMA_ARG_THREADS": "--threads",
    "LLAMA_ARG_TIMEOUT": "--timeout",
    "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_UI": "--webui",
    "LLAMA_ARG_YARN_ATTN_FACTOR": "--yarn-attn-factor",
    "LLAMA_ARG_YARN_BETA_FAST": "--yarn-beta-fast",
    "LLAMA_ARG_YARN_BETA_SLOW": "--yarn-beta-slow",
    "LLAMA_ARG_YARN_EXT_FACTOR": "--yarn-ext-factor",
    "LLAMA_ARG_YARN_ORIG_CTX": "--yarn-orig-ctx",
}
VARIABLES: Mapping[str, str] = {
    **_VARIABLES,
    **{default.variable: default.flags.split()[-1] for default in DEFAULTS if default.variable},
    **{option.variable: max(option.names, key=len) for option in OPTIONS if option.variable},
}


class LlamaServerCommand(click.Command):
    """A command that takes llama-server's command line, its variables and its presets too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        expanded = [word for arg in args for word in (PRESETS[arg].split() if arg in PRESETS else [arg])]
        return super().parse_args(ctx, [*self._arguments_from(os.environ), *expanded])

    def _arguments_from(self, environ: Mapping[str, str]) -> Iterator[str]:
        """The arguments that llama-server's variables stand for. The command line comes later and wins."""
        flags = {name: option for option in self.params for name in [*option.opts, *option.secondary_opts]}
        for variable, flag in VARIABLES.items():
            option = flags[flag]
            negative = option.secondary_opts or [name for name in (f"--no-{flag[2:]}",) if name in flags]
            value = "0" if negative and variable.replace("_ARG_", "_ARG_NO_") in environ else environ.get(variable)
            if value is None:
                continue
            if not getattr(option, "is_flag", False):
                yield from (flag, value)
            elif value in _TRUE:
                yield flag
            elif value in _FALSE:
                yield from negative[:1]
            else:
                raise click.UsageError(f"{variable}: expected on or off, got {value!r}")


def llama_options() -> list[click.Option]:
    """One hidden option for each option of llama-server that sets nothing."""
    return [_option(option) for option in OPTIONS]


def ignored_options(ctx: click.Context) -> Sequence[tuple[str, str]]:
    """The accepted options that are not needed, each with the reason."""
    ignored: Sequence[tuple[str, str]] = ctx.meta.get(_IGNORED, ())
    return ignored


def _option(option: LlamaOption) -> click.Option:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if not value or (option.is_refused and value in option.harmless):
            return
        if option.is_refused:
            name = " or ".join(filter(None, (max(option.names, key=len), option.variable)))
            raise click.UsageError(f"{name} is not supported: {option.reason}", ctx)
        ctx.meta.setdefault(_IGNORED, []).append((max(option.names, key=len), option.reason))

    kind: dict[str, Any] = {"nargs": option.arguments} if option.arguments else {"is_flag": True}
    names = [*option.names, "llama_" + option.names[0].strip("-").replace("-", "_").replace(".", "_")]
    return click.Option(names, hidden=True, expose_value=False, callback=callback, **kind)
