"""How far a run is, on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]
"""One more is done; with a word on what comes next."""


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    # Imported here so that `--help` works without the packages of the extra `lab`.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=total)
        yield lambda note: bars.update(task, advance=1, description=note)
