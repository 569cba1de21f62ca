"""`paddock serve`. Its flags have the names of llama-server's where both have them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.cli.common import config_option
from paddock.cli.llama_server import (
    LlamaServerCommand,
    ignored_options,
    llama_options,
    refused_options,
    unknown_variables,
    words_of,
)
from paddock.cli.options import given_settings, setting_options
from paddock.cli.sources import Sources, download_folder, list_downloads, source_options
from paddock.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paddock.config import Settings
    from paddock.fleet import Fleet
    from paddock.types import ModelKind

_DEFAULTS = "model_manager.defaults"

# An example request for each kind of model.
_EXAMPLES: dict[ModelKind, tuple[str, str]] = {
    "generation": ("/v1/chat/completions", '"messages":[{"role":"user","content":"Say hello"}]'),
    "embedding": ("/v1/embeddings", '"input":"Say hello"'),
    "reranking": ("/v1/rerank", '"query":"Who says hello?","documents":["I do.","The sky is blue."]'),
}


@click.command("serve", cls=LlamaServerCommand, context_settings={"help_option_names": ["-h", "--help", "--usage"]})
@click.option("--dry-run", is_flag=True, help="Print what becomes of each option and exit. Nothing is loaded.")
@config_option
def command(config: Path | None, cache_list: bool, dry_run: bool, models_preset: Path | None, **flags: Any) -> None:
    """Serve models over HTTP. Without -m or --models-dir the small demo model is served."""
    if dry_run:
        _dry_run(config)
        return
    import structlog

    from paddock import logs
    from paddock.config import load_settings

    sources, given = Sources.taken_from(flags), given_settings(flags)
    if given.get("model_manager.context_shift") and given.get("model_manager.deterministic"):
        raise click.UsageError("--context-shift and --deterministic are mutually exclusive: give one of them")
    if any(flags[option.name or ""] for option in command.params if "-v" in option.opts):
        # As in llama-server, -v is also the default of the field `verbose`.
        given["model_manager.defaults"] = {"verbose": True, **given.get("model_manager.defaults", {})}
    words = words_of(click.get_current_context())
    form = given.get("server.log_format")

    def read() -> Settings:
        return _read(config, given, sources, models_preset, words)

    try:
        settings = load_settings(file=config, flags=given)
        if cache_list:
            list_downloads(download_folder(settings.model_manager))
            return
        form = settings.server.log_format
        _configure_log(settings)
        for name, reason in ignored_options(click.get_current_context()):
            structlog.get_logger(__name__).info(f"{name} is not needed: {reason}")
        for name, similar in unknown_variables(os.environ).items():
            hint = f"; did you mean {similar[0]}?" if similar else ""
            structlog.get_logger(__name__).warning(f"{name} is ignored: llama-server has no such variable{hint}")
        from paddock.gateway import serve

        settings = read()
        serve(settings, lambda urls, fleet: _announce(settings, urls, fleet), read)
    except StartupError as error:
        if form != "json":
            raise
        logs.configure(level="CRITICAL", form="json", disabled=False)
        structlog.get_logger(__name__).critical(error.message)
        sys.exit(1)


def _configure_log(settings: Settings) -> None:
    from paddock import logs

    server = settings.server
    try:
        logs.configure(
            level=server.log_level,
            form=server.log_format,
            disabled=server.log_disable,
            file=server.log_file,
            timestamps=server.log_timestamps,
            colors=server.log_colors,
        )
    except OSError as error:
        raise StartupError(f"cannot write the log file {server.log_file} (--log-file): {error.strerror}") from None


command.params += [*source_options(), *setting_options(), *llama_options()]


def _read(
    config: Path | None, given: dict[str, Any], sources: Sources, presets: Path | None, words: list[str]
) -> Settings:
    """The settings, with the models that had to be downloaded. Presets win over variables, not over `words`."""
    import structlog

    from paddock.config import load_settings

    settings = load_settings(file=config, flags=given)
    if presets is not None:
        from paddock.cli.model_presets import apply_presets, read_presets

        log = structlog.get_logger(__name__)
        found = read_presets(presets, command)
        if settings.model_manager.model is not None or sources.hf_repo is not None or sources.model_url is not None:
            log.warning(f"the models of {presets} are not served: a single model is (-m, -hf, -mu)")
            return sources.apply(settings)
        for note in (note for preset in found for note in preset.notes):
            log.info(f"{presets}: {note}")
        own = given_settings(command.without_variables(words).params)
        added = apply_presets(found, settings, own, sources)
        defaults = given.get(_DEFAULTS, {}) | added.get(_DEFAULTS, {})
        settings = load_settings(file=config, flags={**given, **added, _DEFAULTS: defaults})
    return sources.apply(settings)


def _dry_run(config: Path | None) -> None:
    """Print what becomes of each option. The exit status is 2 if one is refused or a setting is invalid."""
    from paddock.cli.dry_run import report
    from paddock.config import load_settings

    ctx = click.get_current_context()
    click.echo(report(ctx))
    load_settings(file=config, flags=given_settings(ctx.params))
    if (presets := ctx.params["models_preset"]) is not None:
        from paddock.cli.model_presets import read_presets

        read_presets(presets, command)
    if refused_options(ctx):
        ctx.exit(2)


def _announce(settings: Settings, urls: Sequence[str], fleet: Fleet) -> None:
    """Print one line with the models, the addresses and an example command."""
    import structlog

    from paddock import logs

    models = list(fleet.catalogue)
    names = [model.name for model in models]
    what = names[0] if len(names) == 1 else f"{len(names)} models"
    named = "" if len(names) == 1 else f'"model":"{names[0]}",' if names else ""
    server = settings.server
    key = ' -H "Authorization: Bearer $KEY"' if server.has_keys else ""
    kind = models[0].kind() if models else None
    path, example = _EXAMPLES[kind or "generation"]
    web = [url for url in urls if not url.startswith("unix:")]
    path = server.api_prefix + path
    page = f"  page: {web[0]}{server.api_prefix}/" if server.webui and web else ""
    line = (
        f"Serving {what} on {' and '.join(urls)}{page}  try: curl {_curl(urls[0], path)}{key} -d '{{{named}{example}}}'"
    )
    if settings.server.log_format == "json":
        structlog.get_logger(__name__).info(line, url=urls[0], urls=urls, models=names)
    elif not settings.server.log_disable:
        if server.log_file is not None:
            structlog.get_logger(__name__).info("listening", urls=urls, models=names)
        logs.flush()  # earlier log lines come first
        click.echo(line)
    from paddock.cli.native.gain import find_hint

    if (hint := find_hint()) is not None:
        structlog.get_logger(__name__).info(hint)
    if not server.has_keys and not server.is_local:
        _warn_of_exposure(settings, ", ".join(web))


def _curl(url: str, path: str) -> str:
    """The arguments of curl for a path of the server."""
    scheme, _, place = url.partition("://")
    return f"--unix-socket {place} http://localhost{path}" if scheme == "unix" else f"{url}{path}"


def _warn_of_exposure(settings: Settings, urls: str) -> None:
    """Warn about a server without keys that other machines can reach, also if the log is disabled."""
    import structlog

    problem = f"everybody who can reach {urls} may use this server, unload its models and change its settings"
    cure = "set a key with --api-key, create one for each user with `paddock keys new`, or listen on 127.0.0.1"
    if settings.server.log_format == "json":
        structlog.get_logger(__name__).warning("no API key is required", problem=problem, cure=cure, url=urls)
    rule = "!" * 100
    click.echo(f"{rule}\n  WARNING: no API key is required:\n  {problem}.\n  Cure: {cure}.\n{rule}", err=True)
