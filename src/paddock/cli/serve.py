"""`paddock serve`: llama-server's flags and our own, all of them names for settings."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.errors import StartupError

if TYPE_CHECKING:
    from paddock.config import Settings
    from paddock.fleet import Fleet
    from paddock.types import ModelKind

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_CACHE_TYPES = click.Choice(["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])

# Flag → the setting it is another name for.
SETTING_OF_FLAG: dict[str, str] = {
    "model": "model_manager.model",
    "models_dir": "model_manager.models_directory",
    "alias": "model_manager.alias",
    "default_model": "model_manager.default_model",
    "lazy": "model_manager.lazy",
    "ctx_size": "model_manager.n_ctx",
    "batch_size": "model_manager.n_batch",
    "ubatch_size": "model_manager.n_ubatch",
    "n_gpu_layers": "model_manager.n_gpu_layers",
    "threads": "model_manager.n_threads",
    "flash_attn": "model_manager.flash_attn",
    "cache_type_k": "model_manager.cache_type_k",
    "cache_type_v": "model_manager.cache_type_v",
    "parallel": "model_manager.parallel",
    "cont_batching": "model_manager.cont_batching",
    "kv_unified": "model_manager.kv_unified",
    "cache_ram": "model_manager.cache_ram",
    "max_queue": "model_manager.max_queue",
    "embedding": "model_manager.embedding",
    "reranking": "model_manager.reranking",
    "pooling": "model_manager.pooling",
    "lora": "model_manager.lora",
    "lora_scaled": "model_manager.lora_scaled",
    "lora_init_without_apply": "model_manager.lora_init_without_apply",
    "model_draft": "model_manager.model_draft",
    "n_gpu_layers_draft": "model_manager.n_gpu_layers_draft",
    "draft_max": "model_manager.draft_max",
    "draft_min": "model_manager.draft_min",
    "draft_p_min": "model_manager.draft_p_min",
    "deterministic": "model_manager.deterministic",
    "chat_template": "model_manager.chat_template",
    "chat_template_file": "model_manager.chat_template_file",
    "idle_timeout": "model_manager.idle_timeout",
    "memory_limit": "model_manager.memory_limit",
    "sandbox": "model_manager.sandbox",
    "models_max": "model_manager.models_max",
    "host": "server.host",
    "port": "server.port",
    "cors_origins": "server.cors_origins",
    "allowed_hosts": "server.allowed_hosts",
    "api_key": "server.api_keys",
    "api_key_file": "server.api_key_file",
    "ssl_key_file": "server.ssl_key_file",
    "ssl_cert_file": "server.ssl_cert_file",
    "metrics": "server.metrics",
    "slots": "server.slots",
    "slot_save_path": "server.slot_save_path",
    "props": "server.props",
    "webui": "server.webui",
    "log_format": "server.log_format",
    "log_disable": "server.log_disable",
    "log_prompts": "server.log_prompts",
    "log_level": "server.log_level",
}


# What to try, by what a model is for.
_EXAMPLES: dict[ModelKind, tuple[str, str]] = {
    "generation": ("/v1/chat/completions", '"messages":[{"role":"user","content":"Say hello"}]'),
    "embedding": ("/v1/embeddings", '"input":"Say hello"'),
    "reranking": ("/v1/rerank", '"query":"Who says hello?","documents":["I do.","The sky is blue."]'),
}


def _options(*groups: Decorator) -> Decorator:
    def apply(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(groups):
            function = option(function)
        return function

    return apply


def _layers(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | str | None:
    """-1 and `all` mean every layer; so does any number past the last (seed command lines use 999)."""
    if value is None or value == "auto":
        return value
    if value == "all":
        return -1
    try:
        return max(int(value), -1)
    except ValueError:
        raise click.BadParameter("a number of layers, 'all' or 'auto'") from None


def _comma_separated(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """One with a comma in it stands in quotes, as llama-server has it. An empty one is one too, and a mistake."""
    return tuple(item for row in csv.reader(values) for item in row or [""])


_MODELS = _options(
    click.option("-m", "--model", metavar="FILE", help="Serve this GGUF file; it answers to any name."),
    click.option("-hf", "-hfr", "--hf-repo", metavar="REPO[:QUANT]",
                 help="Serve a model from the Hugging Face hub; it is downloaded first, if need be."),
    click.option("-hft", "--hf-token", metavar="TOKEN", help="For repositories that want one. [HF_TOKEN]"),
    click.option("--models-dir", metavar="DIR", help="Serve every .gguf file below this directory."),
    click.option("-a", "--alias", multiple=True, callback=_comma_separated, metavar="NAME,...",
                 help="The model's name, and others that it answers to (repeatable)."),
    click.option("--default-model", metavar="NAME", help="The model for requests that name none."),
    click.option("-c", "--ctx-size", type=int, metavar="N", help="Context size in tokens; 0: the model's own. [16384]"),
    click.option("-ngl", "--ngl", "--gpu-layers", "--n-gpu-layers", "n_gpu_layers", callback=_layers, metavar="N",
                 help="Layers on the GPU; -1: all of them, auto: as many as fit. [-1]"),
    click.option("-t", "--threads", type=int, metavar="N", help="CPU threads. [8, or the machine's cores if fewer]"),
    click.option("-b", "--batch-size", type=int, metavar="N", help="Most tokens in one step. [2048]"),
    click.option("-ub", "--ubatch-size", type=int, metavar="N", help="Most tokens in one pass of the graph. [512]"),
    click.option("-fa", "--flash-attn", is_flag=False, flag_value="on", type=click.Choice(["on", "off", "auto"]),
                 help="Flash attention; without a value: on. [auto]"),
    click.option("-ctk", "--cache-type-k", type=_CACHE_TYPES, help="Type of the cached keys. [f16]"),
    click.option("-ctv", "--cache-type-v", type=_CACHE_TYPES, help="Type of the cached values. [f16]"),
    click.option("-np", "--parallel", type=click.IntRange(min=1), metavar="N",
                 help="Requests that run at once. [from the machine]"),
    click.option("-kvu/-no-kvu", "--kv-unified/--no-kv-unified", default=None,
                 help="One context for all requests, or an equal part for each. [for all, unless -np is given]"),
    click.option("-cram", "--cache-ram", type=int, metavar="MIB",
                 help="Memory for prefixes that may come again; -1: no limit, 0: none. [from the machine]"),
    click.option("-cb/-nocb", "--cont-batching/--no-cont-batching", default=None, help="Continuous batching."),
    click.option("--embedding", "--embeddings", is_flag=True, default=None,
                 help="Serve embeddings. [with models made for it]"),
    click.option("--reranking", "--rerank", is_flag=True, default=None,
                 help="Serve reranking. [with models made for it]"),
    click.option("--pooling", type=click.Choice(["none", "mean", "cls", "last", "rank"]),
                 help="How the vectors of an input's tokens become one. [the model's own, or mean]"),
    click.option("--chat-template", metavar="TEXT", help="A Jinja template in place of the model's own."),
    click.option("--chat-template-file", metavar="FILE", help="The same from a file."),
    click.option("--lora", multiple=True, callback=_comma_separated, metavar="FILE,...",
                 help="Load this LoRA adapter with the model (repeatable)."),
    click.option("--lora-scaled", multiple=True, callback=_comma_separated, metavar="FILE:SCALE,...",
                 help="The same with a scale other than 1; numbered after those of --lora."),
    click.option("--lora-init-without-apply", is_flag=True, default=None,
                 help="Adapters do not act before POST /lora-adapters or a request says so."),
    click.option("-md", "--model-draft", "--spec-draft-model", metavar="FILE",
                 help="A small model with the same vocabulary that guesses what the model will say."),
    click.option("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl", "n_gpu_layers_draft",
                 callback=_layers, metavar="N", help="Layers of it on the GPU; -1: all of them. [-1]"),
    click.option("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max", "draft_max", type=int, metavar="N",
                 help="Tokens it guesses at once, at most. [4]"),
    click.option("--draft-min", "--draft-n-min", "--spec-draft-n-min", "draft_min", type=int, metavar="N",
                 help="Fewer than this are not checked. [0]"),
    click.option("--draft-p-min", "--spec-draft-p-min", "draft_p_min", type=float, metavar="P",
                 help="It stops before a token that it thinks less likely. [0.75]"),
)  # fmt: skip
_LIFECYCLE = _options(
    click.option(
        "--lazy/--preload",
        default=None,
        help="Load the model at its first request, or when the server starts. [--preload with one model, else --lazy]",
    ),
    click.option(
        "--idle-timeout", type=float, metavar="SECONDS", help="Unload a model after this long idle; 0: never. [300]"
    ),
    click.option("--memory-limit", metavar="SIZE", help="Memory that all models together may take, as 8GiB or 50%."),
    click.option("--models-max", type=int, metavar="N", help="Models loaded at once, at most; 0: as many as fit. [0]"),
    click.option("--max-queue", type=int, metavar="N", help="Requests that may wait for one model. [1024]"),
    click.option(
        "--deterministic", is_flag=True, default=None, help="Same seed, same bytes. [on with -np 1 -nocb, else off]"
    ),
    click.option("--slot-save-path", metavar="DIR", help="Save and restore slots in this folder."),
    click.option(
        "--sandbox",
        type=click.Choice(["auto", "off", "required"]),
        help="Keep workers from the network, other programs and other files. [auto]",
    ),
    click.option("--no-sandbox", "sandbox", flag_value="off", help="The same as --sandbox off."),
)
_SERVER = _options(
    click.option("--host", metavar="ADDRESS", help="Address to listen on. [127.0.0.1]"),
    click.option("--port", type=int, metavar="N", help="Port to listen on; 0: any free one. [8080]"),
    click.option("--api-key", multiple=True, callback=_comma_separated, metavar="KEY,...",
                 help="Require one of these keys, which may do everything (repeatable)."),
    click.option("--api-key-file", metavar="FILE", help="The same for the keys in this file, one per line."),
    click.option("--ssl-key-file", metavar="FILE", help="TLS private key (PEM)."),
    click.option("--ssl-cert-file", metavar="FILE", help="TLS certificate (PEM)."),
    click.option("--cors-origins", multiple=True, callback=_comma_separated, metavar="ORIGIN,...",
                 help="Origin a browser page may ask from (repeatable); *: any."),
    click.option("--allowed-hosts", multiple=True, callback=_comma_separated, metavar="NAME,...",
                 help="Name it may be asked by, behind a proxy (repeatable); *: any."),
    click.option("--metrics/--no-metrics", default=None, help="Prometheus metrics at /metrics. [on]"),
    click.option("--slots/--no-slots", default=None, help="Slot states at /slots. [on]"),
    click.option("--props", is_flag=True, default=None, help="Allow changing properties by POST /props."),
    click.option("--webui/--no-webui", default=None, help="The web page at /. [on]"),
)  # fmt: skip
_LOGGING = _options(
    click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Configuration file (JSON)."),
    click.option("--log-format", type=click.Choice(["text", "json"]), help="text on stderr, or json on stdout. [text]"),
    click.option("--log-prompts", is_flag=True, default=None, help="Log the bodies of requests, prompts and all."),
    click.option("--log-disable", is_flag=True, default=None, help="No log."),
    click.option("-v", "--verbose", is_flag=True, help="Log everything, also what libllama says."),
)


@click.command("serve", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@_options(_MODELS, _LIFECYCLE, _SERVER, _LOGGING)
def command(config: Path | None, verbose: bool, **flags: Any) -> None:
    """Serve models over HTTP. Without -m or --models-dir the small demo model is served."""
    # Not before now: `--help` should not wait for pydantic, FastAPI and uvicorn.
    import structlog

    from paddock import logs
    from paddock.config import load_settings

    given = given_flags(verbose, flags)
    form = given.get("log_format")

    def read() -> Settings:
        settings = load_settings(file=config, flags=to_settings(given))
        return _with_pulled(settings, given["hf_repo"], given.get("hf_token")) if "hf_repo" in given else settings

    try:
        settings = load_settings(file=config, flags=to_settings(given))
        form = settings.server.log_format
        logs.configure(level=settings.server.log_level, form=form, disabled=settings.server.log_disable)
        from paddock.gateway import serve

        settings = read()
        serve(settings, lambda url, fleet: _announce(settings, url, fleet), read)
    except StartupError as error:
        if form == "json":
            logs.configure(level="CRITICAL", form="json", disabled=False)
            structlog.get_logger(__name__).critical(error.message)
        else:
            click.echo(f"paddock: {error.message}", err=True)
        sys.exit(1)


def _with_pulled(settings: Settings, name: str, token: str | None) -> Settings:
    """The same with a model from the hub as the one that is served; without a network, with what was pulled before."""
    import structlog

    from paddock.errors import HubUnreachable, PullFailed
    from paddock.fleet.catalogue.hub import Source, default_folder, pull, pulled

    log = structlog.get_logger(__name__)
    manager = settings.model_manager
    if manager.model is not None:
        raise StartupError("-hf and a model file exclude each other")
    source, folder = Source.parse(name), manager.models_directory or default_folder()
    try:
        path = pull(source, folder, token=token, say=log.info)
    except HubUnreachable as error:
        try:
            path = pulled(source, folder)
        except PullFailed:
            raise error from None
        log.warning("serving what was pulled before", problem=error.message, path=str(path))
    return settings.model_copy(update={"model_manager": manager.model_copy(update={"model": path})})


def given_flags(verbose: bool, flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were really given."""
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    return given | {"log_level": "DEBUG"} if verbose else given


def to_settings(given: dict[str, Any]) -> dict[str, Any]:
    values = {SETTING_OF_FLAG[name]: value for name, value in given.items() if name in SETTING_OF_FLAG}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _announce(settings: Settings, url: str, fleet: Fleet) -> None:
    """One line that says what is served where, with a command to try."""
    import structlog

    from paddock import logs

    models = list(fleet.catalogue)
    names = [model.name for model in models]
    what = names[0] if len(names) == 1 else f"{len(names)} models"
    named = "" if len(names) == 1 else f'"model":"{names[0]}",' if names else ""
    server = settings.server
    locked = bool(server.api_keys or server.api_key_file or server.keys)
    key = ' -H "Authorization: Bearer $KEY"' if locked else ""
    kind = models[0].kind() if models else None
    path, example = _EXAMPLES[kind or "generation"]
    page = f"  page: {url}/" if server.webui else ""
    line = f"Serving {what} on {url}{page}  try: curl {url}{path}{key} -d '{{{named}{example}}}'"
    if settings.server.log_format == "json":
        structlog.get_logger(__name__).info(line, url=url, models=names)
    elif not settings.server.log_disable:
        logs.flush()  # what came before it stands before it
        click.echo(line)
    if not locked:
        _warn_if_exposed(settings, url)


def _warn_if_exposed(settings: Settings, url: str) -> None:
    """Without keys only this machine should get through. Said even where nothing is logged: it can be fatal."""
    from urllib.parse import urlsplit

    import structlog

    from paddock.hosts import is_loopback

    if is_loopback(urlsplit(url).hostname or ""):
        return
    problem = f"whoever reaches {url} may use this server, stop its models and change its settings"
    cure = "set a key with --api-key, or one for each user with `paddock keys new`, or listen on 127.0.0.1"
    if settings.server.log_format == "json":
        structlog.get_logger(__name__).warning("no API key is asked for", problem=problem, cure=cure, url=url)
    rule = "!" * 100
    click.echo(f"{rule}\n  WARNING: no API key is asked for:\n  {problem}.\n  Cure: {cure}.\n{rule}", err=True)
