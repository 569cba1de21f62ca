"""llama-server's command line: its options, its environment variables and its presets.

Every option of llama-server is one of: a flag of a setting (`Flag` in `paddock.config`), accepted but not needed here,
or refused by name before anything is loaded. `paddock serve` therefore never meets an unknown option of llama-server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

import click

from paddock.cli.llama_options import OPTIONS, LlamaOption
from paddock.cli.request_defaults import DEFAULTS

_WORD = re.compile(r"-[A-Za-z][\w-]+")
_TRUE, _FALSE = frozenset({"on", "enabled", "true", "1"}), frozenset({"off", "disabled", "false", "0"})
_GIVEN, _IGNORED, _REFUSED, _WORDS = (
    f"paddock.cli.llama_server.{name}" for name in ("given", "ignored", "refused", "words")
)
DRY_RUN = "dry_run"
"""The name of the parameter that asks for a report only."""


# llama-server's ready-made configurations, as the arguments that they stand for.
_CODER = "--hf-repo ggml-org/{} --port 8012 --ubatch-size 1024 --batch-size 1024 --ctx-size 0"
_CODER_DRAFT = " --hf-repo-draft ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"
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
    "--fim-qwen-7b-spec": _CODER.format("Qwen2.5-Coder-7B-Q8_0-GGUF") + _CODER_DRAFT,
    "--fim-qwen-14b-spec": _CODER.format("Qwen2.5-Coder-14B-Q8_0-GGUF") + _CODER_DRAFT,
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
    "LLAMA_ARG_API_PREFIX": "--api-prefix",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_CACHE_RAM": "--cache-ram",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    "LLAMA_ARG_CHAT_TEMPLATE": "--chat-template",
    "LLAMA_ARG_CHAT_TEMPLATE_FILE": "--chat-template-file",
    "LLAMA_ARG_CONTEXT_SHIFT": "--context-shift",
    "LLAMA_ARG_CONT_BATCHING": "--cont-batching",
    "LLAMA_ARG_CORS_CREDENTIALS": "--cors-credentials",
    "LLAMA_ARG_CORS_HEADERS": "--cors-headers",
    "LLAMA_ARG_CORS_METHODS": "--cors-methods",
    "LLAMA_ARG_CORS_ORIGINS": "--cors-origins",
    "LLAMA_ARG_CPU_MOE": "--cpu-moe",
    "LLAMA_ARG_CTX_CHECKPOINTS": "--ctx-checkpoints",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_DEVICE": "--device",
    "LLAMA_ARG_DRAFT_MAX": "--draft-max",
    "LLAMA_ARG_DRAFT_MIN": "--draft-min",
    "LLAMA_ARG_EMBEDDINGS": "--embeddings",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
    "LLAMA_ARG_ENDPOINT_PROPS": "--props",
    "LLAMA_ARG_ENDPOINT_SLOTS": "--slots",
    "LLAMA_ARG_FIT": "--fit",
    "LLAMA_ARG_FIT_CTX": "--fit-ctx",
    "LLAMA_ARG_FIT_TARGET": "--fit-target",
    "LLAMA_ARG_FLASH_ATTN": "--flash-attn",
    "LLAMA_ARG_HF_FILE": "--hf-file",
    "LLAMA_ARG_HF_REPO": "--hf-repo",
    "LLAMA_ARG_HOST": "--host",
    "LLAMA_ARG_JINJA": "--jinja",
    "LLAMA_ARG_MMPROJ": "--mmproj",
    "LLAMA_ARG_MMPROJ_URL": "--mmproj-url",
    "LLAMA_ARG_MMPROJ_AUTO": "--mmproj-auto",
    "LLAMA_ARG_MMPROJ_OFFLOAD": "--mmproj-offload",
    "LLAMA_ARG_IMAGE_MIN_TOKENS": "--image-min-tokens",
    "LLAMA_ARG_IMAGE_MAX_TOKENS": "--image-max-tokens",
    "LLAMA_ARG_KV_OFFLOAD": "--kv-offload",
    "LLAMA_ARG_KV_UNIFIED": "--kv-unified",
    "LLAMA_ARG_LAZY_MODE": "--lazy-mode",
    "LLAMA_ARG_LOAD_MODE": "--load-mode",
    "LLAMA_ARG_LOG_COLORS": "--log-colors",
    "LLAMA_ARG_LOG_FILE": "--log-file",
    "LLAMA_ARG_LOG_JSONL": "--log-jsonl",
    "LLAMA_ARG_LOG_TIMESTAMPS": "--log-timestamps",
    "LLAMA_ARG_LOG_VERBOSITY": "--log-verbosity",
    "LLAMA_ARG_MAIN_GPU": "--main-gpu",
    "LLAMA_ARG_MODEL": "--model",
    "LLAMA_ARG_MODEL_URL": "--model-url",
    "LLAMA_ARG_MODELS_DIR": "--models-dir",
    "LLAMA_ARG_MODELS_AUTOLOAD": "--models-autoload",
    "LLAMA_ARG_MODELS_MAX": "--models-max",
    "LLAMA_ARG_MODELS_PRESET": "--models-preset",
    "LLAMA_ARG_NO_HOST": "--no-host",
    "LLAMA_ARG_NUMA": "--numa",
    "LLAMA_ARG_N_CPU_FFN": "--n-cpu-ffn",
    "LLAMA_ARG_N_CPU_MOE": "--n-cpu-moe",
    "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers",
    "LLAMA_ARG_N_GPU_LAYERS_DRAFT": "--n-gpu-layers-draft",
    "LLAMA_ARG_N_PARALLEL": "--parallel",
    "LLAMA_ARG_OFFLINE": "--offline",
    "LLAMA_ARG_OVERRIDE_TENSOR": "--override-tensor",
    "LLAMA_ARG_POOLING": "--pooling",
    "LLAMA_ARG_PORT": "--port",
    "LLAMA_ARG_REPACK": "--repack",
    "LLAMA_ARG_RERANKING": "--reranking",
    "LLAMA_ARG_REUSE_PORT": "--reuse-port",
    "LLAMA_ARG_ROPE_FREQ_BASE": "--rope-freq-base",
    "LLAMA_ARG_ROPE_FREQ_SCALE": "--rope-freq-scale",
    "LLAMA_ARG_ROPE_SCALE": "--rope-scale",
    "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling",
    "LLAMA_ARG_RPC": "--rpc",
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K": "--cache-type-k-draft",
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V": "--cache-type-v-draft",
    "LLAMA_ARG_SPEC_DRAFT_CPU_MOE": "--cpu-moe-draft",
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "--hf-repo-draft",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "--model-draft",
    "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE": "--n-cpu-moe-draft",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "--draft-max",
    "LLAMA_ARG_SPEC_DRAFT_N_MIN": "--draft-min",
    "LLAMA_ARG_SPEC_DRAFT_P_MIN": "--draft-p-min",
    "LLAMA_ARG_SPEC_TYPE": "--spec-type",
    "LLAMA_ARG_SPLIT_MODE": "--split-mode",
    "LLAMA_ARG_SSL_CERT_FILE": "--ssl-cert-file",
    "LLAMA_ARG_STATIC_PATH": "--path",
    "LLAMA_ARG_SWA_FULL": "--swa-full",
    "LLAMA_ARG_SSL_KEY_FILE": "--ssl-key-file",
    "LLAMA_ARG_TAGS": "--tags",
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


def is_on(value: str) -> bool:
    """Whether llama-server takes the value of a flag for on."""
    return value in _TRUE


def is_off(value: str) -> bool:
    return value in _FALSE


class LlamaServerCommand(click.Command):
    """A command that takes llama-server's command line, its variables and its presets too."""

    WITHOUT_VARIABLES = object()
    """The `obj` of a context that ignores the variables."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Raises `click.UsageError` with all refused options, except in a dry run, which reports them."""
        expanded = list(self._spelled_out(ctx, args))
        environ = {} if ctx.obj is self.WITHOUT_VARIABLES else os.environ
        arguments = [*self._arguments_from(environ, expanded), *expanded]
        ctx.meta[_WORDS] = expanded
        ctx.meta[_GIVEN] = frozenset(argument.partition("=")[0] for argument in arguments)
        rest = super().parse_args(ctx, arguments)
        if (refused := refused_options(ctx)) and not ctx.params.get(DRY_RUN):
            raise click.UsageError("\n".join(f"{name} is not supported: {reason}" for name, reason in refused), ctx)
        return rest

    def without_variables(self, arguments: list[str]) -> click.Context:
        """Parse arguments as if no variable of llama-server were set."""
        return self.make_context("serve", arguments, obj=self.WITHOUT_VARIABLES)

    def _spelled_out(self, ctx: click.Context, args: Sequence[str]) -> Iterator[str]:
        """The arguments with presets replaced, and `--ctx_size` as `--ctx-size`. As in llama-server an option with one
        dash is a whole word: `-cnv` is not `-c nv`. Raises `click.NoSuchOption`.
        """
        flags, rest = self.flags, iter(args)
        for argument in rest:
            name, equals, value = argument.partition("=")
            name = name.replace("_", "-") if name.startswith("--") else name
            if name in PRESETS:
                yield from PRESETS[name].split()
                continue
            option = flags.get(name)
            if option is None and _WORD.fullmatch(argument):
                raise click.NoSuchOption(argument, possibilities=get_close_matches(argument, flags), ctx=ctx)
            yield argument if option is None else f"{name}{equals}{value}"
            if (
                isinstance(option, click.Option)
                and not equals
                and not option.is_flag
                and not isinstance(option.flag_value, str)
            ):
                yield from islice(rest, option.nargs)

    @property
    def flags(self) -> dict[str, click.Parameter]:
        return {name: option for option in self.params for name in [*option.opts, *option.secondary_opts]}

    def _arguments_from(self, environ: Mapping[str, str], args: Sequence[str]) -> Iterator[str]:
        """The arguments that llama-server's variables stand for. The command line comes later and wins."""
        given = {arg.partition("=")[0] for arg in args}
        flags = self.flags
        for variable, flag in VARIABLES.items():
            option = flags[flag]
            negative = option.secondary_opts or [name for name in (f"--no-{flag[2:]}",) if name in flags]
            value = "0" if negative and variable.replace("_ARG_", "_ARG_NO_") in environ else environ.get(variable)
            if value is None or (option.multiple and not given.isdisjoint(option.opts)):
                continue  # a repeated flag would add to the variable
            if not getattr(option, "is_flag", False):
                yield from (flag, value)
            elif value in _TRUE:
                yield flag
            elif value in _FALSE:
                yield from negative[:1]
            else:
                raise click.UsageError(f"{variable}: expected on or off, got {value!r}")


def words_of(ctx: click.Context) -> list[str]:
    """The command line, without what llama-server's variables add to it."""
    words: list[str] = ctx.meta[_WORDS]
    return list(words)


def llama_options() -> list[click.Option]:
    """One hidden option for each option of llama-server that sets nothing."""
    return [_option(option) for option in OPTIONS]


def ignored_options(ctx: click.Context) -> Sequence[tuple[str, str]]:
    """The accepted options that are not needed, each with the reason."""
    ignored: Sequence[tuple[str, str]] = ctx.meta.get(_IGNORED, ())
    return ignored


def refused_options(ctx: click.Context) -> Sequence[tuple[str, str]]:
    """The options that are not supported, each with the reason."""
    refused: Sequence[tuple[str, str]] = ctx.meta.get(_REFUSED, ())
    return refused


def spelling(ctx: click.Context, names: Sequence[str]) -> str:
    """The name of an option that the command line uses, or else its longest one."""
    return next((name for name in names if name in ctx.meta[_GIVEN]), max(names, key=len))


def unknown_variables(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Variables that look like llama-server's, but that it does not have. Each has a list of a similar one, or none."""
    known = VARIABLES.keys() | {name.replace("_ARG_", "_ARG_NO_") for name in VARIABLES}
    unknown = sorted(name for name in environ if name.startswith("LLAMA_ARG_") and name not in known)
    return {name: get_close_matches(name, VARIABLES, 1, 0.8) for name in unknown}


def _option(option: LlamaOption) -> click.Option:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if not value:
            return
        if option.is_refused:
            name = " or ".join(filter(None, (spelling(ctx, option.names), option.variable)))
            ctx.meta.setdefault(_REFUSED, []).append((name, option.reason))
            return
        ctx.meta.setdefault(_IGNORED, []).append((spelling(ctx, option.names), option.reason))

    kind: dict[str, Any] = {"nargs": option.arguments} if option.arguments else {"is_flag": True}
    names = [*option.names, "llama_" + option.names[0].strip("-").replace("-", "_").replace(".", "_")]
    return click.Option(names, hidden=True, expose_value=False, callback=callback, **kind)
