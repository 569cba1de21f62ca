"""The section `batches`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from paddock.config.fields import Flag, Section, Size
from paddock.types.windows import Window


def _window(value: str) -> str:
    Window.parse(value)
    return value.strip()


class BatchSettings(Section):
    """Files and batches: when they run, and how much of them a key may have."""

    may_load: Annotated[Literal["never", "when_idle", "always"], Flag("--batch-may-load")] = "when_idle"
    """Whether a batch may load its model: `never`, `when_idle` (no other model is in use) or `always`."""
    windows: Annotated[
        list[Annotated[str, AfterValidator(_window)]], Flag("--batch-windows", metavar="HH:MM-HH:MM,...")
    ] = []
    """The times of day, in local time, at which lines are started, such as `22:00-06:00`. If empty, at any time."""
    idle_seconds: float = Field(60.0, ge=0)
    """How long other models must have been idle before a batch may load its model (`when_idle`)."""
    in_flight: Annotated[int | None, Flag("--batch-in-flight", metavar="N")] = Field(None, ge=1, le=1024)
    """The most lines that run at the same time for one model. If null, twice as many as the model has slots."""
    attempts: int = Field(3, ge=1, le=100)
    """How often a line is run if the worker crashes each time. Then it is written to the error file."""
    allow_model_change: Annotated[bool, Flag("--allow-change")] = False
    """Go on with a batch when the file of its model has changed. Otherwise the batch fails and the rest is not run."""
    max_file_bytes: Size = 8 * 1024**3
    """The largest file that can be uploaded."""
    max_files_per_key: int = Field(10_000, ge=1)
    """The most files of one key, or of all callers on a server without keys."""
    max_bytes_per_key: Size = 64 * 1024**3
    """The most bytes in the files of one key."""
    max_waiting_per_key: int = Field(1_000_000, ge=1)
    """The most unanswered requests in all batches of one key. A batch with more is refused."""
