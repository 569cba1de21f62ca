"""Where the model comes from: options of `paddock serve` that download a model, or list what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paddock.config import ModelManagerSettings, Settings

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sources:
    """The repositories and URLs of a command line."""

    hf_repo: str | None = None
    hf_file: str | None = None
    hf_token: str | None = None
    model_url: str | None = None
    hf_repo_draft: str | None = None
    mmproj_url: str | None = None
    offline: bool = False

    @classmethod
    def taken_from(cls, flags: dict[str, Any]) -> Sources:
        """Removes the options from `flags`. Raises `click.UsageError` if they contradict each other."""
        found = cls(**{field.name: flags.pop(field.name) for field in fields(cls)})
        if found.hf_file is not None and found.hf_repo is None:
            raise click.UsageError("--hf-file needs the repository of the file: give --hf-repo too")
        if found.hf_repo is not None and found.model_url is not None:
            raise click.UsageError("--hf-repo and --model-url are mutually exclusive: give one of them")
        return found

    def apply(self, settings: Settings) -> Settings:
        """The settings with the downloaded files as the model and the draft model."""
        manager = settings.model_manager
        update: dict[str, Any] = {}
        if (path := self.model(manager, to=manager.model)) is not None:
            update["model"] = path
        if (draft := self.draft(manager)) is not None:
            update["model_draft"] = draft.absolute()
        if (projector := self.projector(manager)) is not None:
            update["mmproj"] = projector.absolute()
        return settings.model_copy(update={"model_manager": manager.model_copy(update=update)}) if update else settings

    def model(self, manager: ModelManagerSettings, *, to: Path | None) -> Path | None:
        """Download the model, a URL's to the path `to` if there is one. None if there is nothing to download."""
        from paddock.errors import StartupError

        if self.model_url is not None:
            return self._from_url(self.model_url, manager, to)
        if self.hf_repo is None:
            return None
        if to is not None:
            raise StartupError("-hf and -m are mutually exclusive: give one of them")
        return self._from_hub(self.hf_repo, self.hf_file, manager)

    def draft(self, manager: ModelManagerSettings) -> Path | None:
        from paddock.errors import StartupError

        if self.hf_repo_draft is None:
            return None
        if manager.model_draft is not None:
            raise StartupError("--hf-repo-draft and --model-draft are mutually exclusive: give one of them")
        return self._from_hub(self.hf_repo_draft, None, manager)

    def projector(self, manager: ModelManagerSettings) -> Path | None:
        """Download the projector, to the path of `mmproj` if that is given."""
        return None if self.mmproj_url is None else self._from_url(self.mmproj_url, manager, manager.mmproj)

    def _from_hub(self, name: str, file: str | None, manager: ModelManagerSettings) -> Path:
        from paddock.fleet.catalogue.hub import Source, pull, pulled

        source, folder = Source.parse(name, file), download_folder(manager)
        return _downloaded(
            lambda say: pull(source, folder, token=self.hf_token, say=say),
            lambda: pulled(source, folder),
            is_offline=self.offline,
        )

    def _from_url(self, url: str, manager: ModelManagerSettings, to: Path | None) -> Path:
        from paddock.fleet.catalogue.urls import download, downloaded

        folder = download_folder(manager)
        return _downloaded(
            lambda say: download(url, folder, to=to, headers=self._hub_headers(url), say=say),
            lambda: downloaded(url, folder, to=to),
            is_offline=self.offline,
        )

    def _hub_headers(self, url: str) -> dict[str, str]:
        """The token is for the hub, not for other servers."""
        from urllib.parse import urlsplit

        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not marked so

        is_hub = urlsplit(url).netloc == urlsplit(constants.ENDPOINT).netloc
        return dict(build_hf_headers(token=self.hf_token)) if is_hub else {}


def _downloaded(
    download: Callable[[Callable[[str], None]], Path], earlier: Callable[[], Path], *, is_offline: bool
) -> Path:
    """Without a network, an earlier download is used."""
    import structlog

    from paddock.errors import HubUnreachable, PullFailed

    log = structlog.get_logger(__name__)
    if is_offline:
        try:
            return earlier()
        except PullFailed as error:
            raise PullFailed(f"{error.message}; --offline downloads nothing: start once without it") from None
    try:
        return download(log.info)
    except HubUnreachable as error:
        try:
            path = earlier()
        except PullFailed:
            raise error from None
        log.warning("serving the model that was downloaded earlier", problem=error.message, path=str(path))
        return path


def download_folder(manager: ModelManagerSettings) -> Path:
    from paddock.fleet.catalogue.hub import default_folder

    return manager.models_directory or default_folder()


def source_options() -> list[click.Option]:
    """The options of `Sources`, and those that print something and exit."""
    return [
        click.Option(
            ["-hf", "-hfr", "--hf-repo"],
            metavar="REPO[:QUANT]",
            help="Serve a model from the Hugging Face hub. It is downloaded first if necessary.",
        ),
        click.Option(["-hff", "--hf-file"], metavar="FILE", help="The file of the repository, instead of a QUANT."),
        click.Option(
            ["-hft", "--hf-token"], metavar="TOKEN", help="The token for repositories that require one. [HF_TOKEN]"
        ),
        click.Option(
            ["-mu", "--model-url"],
            metavar="URL",
            help="Download the model's file from this address, to the file of --model if that is given.",
        ),
        click.Option(
            ["-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf", "hf_repo_draft"],
            metavar="REPO[:QUANT]",
            help="Use a draft model from the Hugging Face hub.",
        ),
        click.Option(
            ["-mmu", "--mmproj-url"],
            metavar="URL",
            help="Download the model's projector from this address, to the file of --mmproj if that is given.",
        ),
        click.Option(
            ["--models-preset"],
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Serve the models of a preset file (INI) of llama-server's router mode.",
        ),
        click.Option(["--offline"], is_flag=True, help="Use earlier downloads only, and no network."),
        click.Option(["-cl", "--cache-list"], is_flag=True, help="List the downloaded models and exit."),
        click.Option(
            ["--list-devices"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_and_exit(_list_devices),
            help="List the GPUs that libllama can use and exit.",
        ),
        click.Option(
            ["--completion-bash"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_and_exit(_print_completion),
            help="Print a completion script for bash and exit.",
        ),
    ]


def list_downloads(folder: Path) -> None:
    from paddock.fleet.catalogue.hub import quantisations

    models = quantisations(folder)
    click.echo(f"number of models in cache: {len(models)}")
    for number, name in enumerate(models, 1):
        click.echo(f"{number:4}. {name}")


def _list_devices(_ctx: click.Context) -> None:
    from paddock.fleet.process.native import Gpu, NativeQueryFailed, ask_native

    try:
        gpus = ask_native("devices", list[Gpu])
    except NativeQueryFailed as error:
        raise click.ClickException(f"cannot query the devices: {error}") from None
    click.echo("Available devices:")
    for gpu in gpus:
        click.echo(f"  {gpu.name}: {gpu.description} ({gpu.total // _MIB} MiB, {gpu.free // _MIB} MiB free)")
    if not gpus:
        click.echo("  (none)")


def _print_completion(ctx: click.Context) -> None:
    from click.shell_completion import BashComplete

    root = ctx.find_root()
    click.echo(BashComplete(root.command, {}, "paddock", "_PADDOCK_COMPLETE").source())


def _and_exit(act: Callable[[click.Context], None]) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            act(ctx)
            ctx.exit(0)

    return callback
