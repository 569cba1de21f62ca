"""What the store keeps: files, batches and the lines of running batches."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Dialect = Literal["openai", "anthropic"]
Ending = Literal["completed", "expired", "cancelled", "failed"]
MOST_FAILURES: Final = 5
ENDED: Final = frozenset({"failed", "completed", "expired", "cancelled"})


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    owner: str
    """The name of the API key; empty on a server without keys."""
    name: str
    purpose: Literal["batch", "batch_output"]
    size: int
    created_at: int
    expires_at: int | None = None
    hidden: bool = False
    """It belongs to a batch of an API without files."""


class Mistake(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a batch was refused: one mistake of its input."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Counted from 1."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the first lines that failed, for those who watch the batch."""

    custom_id: str
    code: str
    message: str
    status: int = 0
    """Of the response; 0: there was none."""


class TokenUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class ResultPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The complete part of a result file. What lies behind it in the file was not committed."""

    size: int = 0
    lines: int = 0
    receipt: str = ""
    """The hash of its last receipt; empty: there is none."""


class Batch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: str
    owner: str
    dialect: Dialect
    endpoint: str
    input_file: str
    output_file: str
    error_file: str
    window: str
    """OpenAI's `completion_window`, as it was sent."""
    created_at: int
    expires_at: int
    status: Status = "validating"
    ending: Ending | None = None
    """What follows `finalizing` or `cancelling`."""
    metadata: dict[str, str] = {}
    deterministic: bool = False
    receipts: bool = True
    """Deterministic replies have a receipt, unless the line says otherwise."""
    allow_change: bool = False
    """Go on if the model's file changes."""
    keep_results: int | None = None
    """Seconds after which the result files are deleted; None: they are kept."""
    total: int = 0
    """The number of its lines. Known from the beginning if the batch was created with its requests, else when they are
    validated.
    """
    not_run: int = 0
    """Lines in the error file because the batch expired or was cancelled."""
    output: ResultPart = ResultPart()
    errors: ResultPart = ResultPart()
    usage: TokenUsage = TokenUsage()
    first_failures: tuple[Failure, ...] = ()
    """At most `MOST_FAILURES`. The error file has all of them."""
    mistakes: tuple[Mistake, ...] = ()
    model: str | None = None
    """The model's name, as found when the batch was created."""
    identity: str = ""
    """Identifies the model's files."""
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def unanswered(self) -> int:
        return self.total - self.output.lines - self.errors.lines


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks for."""

    dialect: Dialect
    endpoint: str
    input_file: str
    window: str
    seconds: int
    """The same as `window`."""
    metadata: Mapping[str, str] = {}
    deterministic: bool = False
    receipts: bool = True
    allow_change: bool = False
    keep_results: int | None = None

    def begun(self, owner: str, now: int) -> Batch:
        return Batch(
            id=new_id("batch_" if self.dialect == "openai" else "msgbatch_"),
            owner=owner,
            dialect=self.dialect,
            endpoint=self.endpoint,
            input_file=self.input_file,
            output_file=new_id("file-"),
            error_file=new_id("file-"),
            window=self.window,
            created_at=now,
            expires_at=now + self.seconds,
            metadata=dict(self.metadata),
            deterministic=self.deterministic,
            receipts=self.receipts,
            allow_change=self.allow_change,
            keep_results=self.keep_results,
        )


class NewLine(msgspec.Struct, frozen=True):
    """A valid line of an input file."""

    number: int
    """Counted from 1."""
    custom_id: str
    start: int
    """Where the line begins in the file, in bytes."""
    size: int


class Line(msgspec.Struct, frozen=True):
    """A line that is not answered yet."""

    number: int
    rank: int
    """Its place in the order in which lines are run."""
    custom_id: str
    start: int
    size: int
    attempts: int
    """How often a crash has ended it."""


class Result(msgspec.Struct, frozen=True):
    """The end of a line, for one of the two result files."""

    number: int
    custom_id: str
    reply: bytes | None
    """The body of the response, as the endpoint wrote it."""
    status: int = 0
    request_id: str = ""
    error: tuple[str, str] | None = None
    """Code and message, if there is no response."""
    usage: TokenUsage = TokenUsage()

    @property
    def was_run(self) -> bool:
        return self.error is None or self.error[0] not in ("batch_expired", "batch_cancelled")

    @property
    def is_success(self) -> bool:
        return self.error is None and 200 <= self.status < 300


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)
