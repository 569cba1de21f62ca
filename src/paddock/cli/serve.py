"""`paddock serve`. Its flags have the names of llama-server's where both have them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock.cli.common import config_option
from paddock.cli.llama_server import LlamaServerCommand, ignored_options, llama_options
from paddock.cli.options import given_settings, setting_options
from paddock.errors import StartupError

if TYPE_CHECKING:
    from paddock.config import Settings
    from paddock.fleet import Fleet
    from paddock.types import ModelKind

# An example request for each kind of model.
_EXAMPLES: dict[ModelKind, tuple[str, str]] = {
    "generation": ("/v1/chat/completions", '"messages":[{"role":"user","content":"Say hello"}]'),
    "embedding": ("/v1/embeddings", '"input":"Say hello"'),
    "reranking": ("/v1/rerank", '"query":"Who says hello?","documents":["I do.","The sky is blue."]'),
}


@click.command("serve", cls=LlamaServerCommand, context_settings={"help_option_names": ["-h", "--help", "--usage"]})
@click.option(
    "-hf",
    "-hfr",
    "--hf-repo",
    metavar="REPO[:QUANT]",
    help="Serve a model from the Hugging Face hub. It is downloaded first if necessary.",
)
@click.option("-hft", "--hf-token", metavar="TOKEN", help="The token for repositories that require one. [HF_TOKEN]")
@config_option
def command(config: Path | None, hf_repo: str | None, hf_token: str | None, **flags: Any) -> None:
    """Serve models over HTTP. Without -m or --models-dir the small demo model is served."""
    import structlog

    from paddock import logs
    from paddock.config import load_settings

    given = given_settings(flags)
    form = given.get("server.log_format")

    def read() -> Settings:
        settings = load_settings(file=config, flags=given)
        return settings if hf_repo is None else _with_pulled(settings, hf_repo, hf_token)

    try:
        settings = load_settings(file=config, flags=given)
        form = settings.server.log_format
        logs.configure(level=settings.server.log_level, form=form, disabled=settings.server.log_disable)
        for name, reason in ignored_options(click.get_current_context()):
            structlog.get_logger(__name__).info(f"{name} is not needed: {reason}")
        from paddock.gateway import serve

        settings = read()
        serve(settings, lambda url, fleet: _announce(settings, url, fleet), read)
    except StartupError as error:
        if form != "json":
            raise
        logs.configure(level="CRITICAL", form="json", disabled=False)
        structlog.get_logger(__name__).critical(error.message)
        sys.exit(1)


command.params += [*setting_options(), *llama_options()]


def _with_pulled(settings: Settings, name: str, token: str | None) -> Settings:
    """The settings with a model from the hub as the one to serve. Without a network, an earlier download is used."""
    import structlog

    from paddock.errors import HubUnreachable, PullFailed
    from paddock.fleet.catalogue.hub import Source, default_folder, pull, pulled

    log = structlog.get_logger(__name__)
    manager = settings.model_manager
    if manager.model is not None:
        raise StartupError("-hf and -m are mutually exclusive: give one of them")
    source, folder = Source.parse(name), manager.models_directory or default_folder()
    try:
        path = pull(source, folder, token=token, say=log.info)
    except HubUnreachable as error:
        try:
            path = pulled(source, folder)
        except PullFailed:
            raise error from None
        log.warning("serving the model that was downloaded earlier", problem=error.message, path=str(path))
    return settings.model_copy(update={"model_manager": manager.model_copy(update={"model": path})})


def _announce(settings: Settings, url: str, fleet: Fleet) -> None:
    """Print one line with the models, the address and an example command."""
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
    page = f"  page: {url}/" if server.webui else ""
    line = f"Serving {what} on {url}{page}  try: curl {url}{path}{key} -d '{{{named}{example}}}'"
    if settings.server.log_format == "json":
        structlog.get_logger(__name__).info(line, url=url, models=names)
    elif not settings.server.log_disable:
        logs.flush()  # earlier log lines come first
        click.echo(line)
    if not server.has_keys:
        _warn_if_exposed(settings, url)


def _warn_if_exposed(settings: Settings, url: str) -> None:
    """Warn about a server without keys that other machines can reach, also if the log is disabled."""
    from urllib.parse import urlsplit

    import structlog

    from paddock.hosts import is_loopback

    if is_loopback(urlsplit(url).hostname or ""):
        return
    problem = f"everybody who can reach {url} may use this server, unload its models and change its settings"
    cure = "set a key with --api-key, create one for each user with `paddock keys new`, or listen on 127.0.0.1"
    if settings.server.log_format == "json":
        structlog.get_logger(__name__).warning("no API key is required", problem=problem, cure=cure, url=url)
    rule = "!" * 100
    click.echo(f"{rule}\n  WARNING: no API key is required:\n  {problem}.\n  Cure: {cure}.\n{rule}", err=True)
