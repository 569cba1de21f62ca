"""The progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]
"""Advance by one. The text describes the step that is done."""


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    # Imported here so that `--help` is fast.
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
