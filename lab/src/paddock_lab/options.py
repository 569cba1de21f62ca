"""Flags, server starts and the report: what all experiments share on the command line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from paddock_lab.progress import Advance, progress
from paddock_lab.report.recording import Recording, new_folder
from paddock_lab.servers import Entrant, Server, StartFailed, running

if TYPE_CHECKING:
    from paddock_lab.report import Findings

_NEEDED = ("matplotlib", "rich")
_INTERRUPTED = 130
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class LabCommand(click.Command):
    """A command whose help works without the packages that it needs to run."""

    def invoke(self, ctx: click.Context) -> Any:
        if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
            click.echo(f"paddock: the lab needs {' and '.join(missing)}: pip install paddock-lab", err=True)
            sys.exit(1)
        return super().invoke(ctx)


servers_option = click.option(
    "--server", "sources", multiple=True, metavar="NAME=URL|COMMAND", help="A server to measure (repeatable). [Paddock]"
)
out_option = click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="[lab-results/NAME-DATE]")
_COMMON: Sequence[Decorator] = (
    click.option(
        "--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="GGUF file for {model}."
    ),
    click.option("--model-name", default="", help="`model` in the requests. [the first that a server lists]"),
    click.option("--api-key", envvar="LAB_API_KEY", default="", help="Sent to every server. [LAB_API_KEY]"),
    click.option("--start-timeout", default=120.0, show_default=True, metavar="SECONDS"),
    click.option("--timeout", default=600.0, show_default=True, metavar="SECONDS", help="For one request."),
    out_option,
)


def common_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_COMMON):
        function = option(function)
    return function


def check(entered: Sequence[Entrant], model: Path | None, more_names: Sequence[str] = ()) -> None:
    names = [*(entrant.name for entrant in entered), *more_names]
    if len(set(names)) < len(names):
        raise click.UsageError(f"every server needs a different name: {', '.join(names)}")
    if model is None and any("{model}" in entrant.source for entrant in entered):
        raise click.UsageError("a command has {model}, so --model is needed")


def start(stack: ExitStack, entrant: Entrant, *, model: Path | None, seconds: float, api_key: str) -> Server:
    """Start a server that ends with the stack."""
    click.echo(
        f"starting {entrant.name}: {entrant.source}" if not entrant.is_url else f"using {entrant.source}", err=True
    )
    try:
        return stack.enter_context(running(entrant, {"model": str(model)}, seconds, api_key))
    except (StartFailed, OSError) as failure:
        raise click.ClickException(str(failure)) from failure


class Run:
    """One run of an experiment: its recording, whether it was interrupted, and its report."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._interrupted = False

    @contextmanager
    def measuring(self, total: int) -> Iterator[Advance]:
        """Show the progress. Ctrl-C ends the block, and the report has the measurements so far."""
        try:
            with progress(total) as advance:
                yield advance
        except KeyboardInterrupt:
            self._interrupted = True

    def end(
        self, findings: Findings, *, servers: Mapping[str, str], failed: bool, flags: Mapping[str, object]
    ) -> NoReturn:
        """Write and print the report and exit. `flags` replaces flags of the command line in the report."""
        params = click.get_current_context().params
        given = {name: value for name, value in params.items() if name != "out" and value is not None}
        page = self.recording.finish(findings, partial=self._interrupted, servers=servers, flags={**given, **flags})
        for line in (*findings.summary, *(f"note: {note}" for note in findings.notes)):
            click.echo(line)
        click.echo(f"{'Interrupted; the' if self._interrupted else 'The'} report: {page}")
        sys.exit(_INTERRUPTED if self._interrupted else failed)


@contextmanager
def new_run(out: Path | None, name: str, title: str, question: str) -> Iterator[Run]:
    with Recording(new_folder(out, name), title, question) as recording:
        yield Run(recording)
