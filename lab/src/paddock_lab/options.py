"""What experiments have in common on the command line."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paddock_lab.servers import Entrant, Server, StartFailed, running

if TYPE_CHECKING:
    from paddock_lab.report import Findings

_NEEDED = ("matplotlib", "rich")
Decorator = Callable[[Callable[..., None]], Callable[..., None]]

INTERRUPTED = 130

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class LabCommand(click.Command):
    """A command that needs the packages of the extra `lab` to run, but not to show its help."""

    def invoke(self, ctx: click.Context) -> Any:
        if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
            click.echo(f"paddock: the lab needs {' and '.join(missing)}: pip install paddock-lab", err=True)
            sys.exit(1)
        return super().invoke(ctx)


_COMMON: Sequence[Decorator] = (
    click.option(
        "--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="GGUF file for {model}."
    ),
    click.option("--model-name", default="", help="`model` in the requests. [the first that a server lists]"),
    click.option("--api-key", envvar="LAB_API_KEY", default="", help="Sent to every server. [LAB_API_KEY]"),
    click.option("--start-timeout", default=120.0, show_default=True, metavar="SECONDS"),
    click.option("--timeout", default=600.0, show_default=True, metavar="SECONDS", help="For one request."),
    click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="[lab-results/NAME-DATE]"),
)


def common_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_COMMON):
        function = option(function)
    return function


def check(entered: Sequence[Entrant], model: Path | None, more_names: Sequence[str] = ()) -> None:
    names = [*(entrant.name for entrant in entered), *more_names]
    if len(set(names)) < len(names):
        raise click.UsageError(f"every server needs a name of its own: {', '.join(names)}")
    if model is None and any("{model}" in entrant.source for entrant in entered):
        raise click.UsageError("a command has {model}, so --model is needed")


def start(stack: ExitStack, entrant: Entrant, *, model: Path | None, seconds: float, api_key: str) -> Server:
    """The server, which ends with the stack; also when we are terminated, which is the same as Ctrl-C from here on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    click.echo(
        f"starting {entrant.name}: {entrant.source}" if not entrant.is_url else f"asking {entrant.source}", err=True
    )
    try:
        return stack.enter_context(running(entrant, {"model": str(model)}, seconds, api_key))
    except (StartFailed, OSError) as failure:
        raise click.ClickException(str(failure)) from failure


def flags() -> dict[str, Any]:
    """Of the command that runs, as they were given or are by default."""
    return {name: value for name, value in click.get_current_context().params.items() if name != "out"}


def tell(findings: Findings, page: Path, *, interrupted: bool) -> None:
    for line in (*findings.summary, *(f"note: {note}" for note in findings.notes)):
        click.echo(line)
    click.echo(f"{'Interrupted; the' if interrupted else 'The'} report: {page}")
