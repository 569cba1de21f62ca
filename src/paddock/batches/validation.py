"""Whole-file validation: every line is checked before any is run. Reads the file once, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from paddock.batches.records import Mistake, NewLine
from paddock.errors import PaddockError

MOST_MISTAKES: Final = 100
"""How many mistakes of a file are reported."""
LONGEST_CUSTOM_ID: Final = 512
_FIELDS: Final = ("custom_id", "method", "url", "body")
_OVERHEAD = 64 * 1024
"""Bytes of a line beside its body."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What the endpoint's own validation finds out about a body."""

    model: str
    """The name of the model that will answer."""
    key: bytes = b""
    """The beginning of the prompt, for the order of lines."""


Check = Callable[[bytes], Checked]
"""Validates the body of a line as its endpoint does. Raises `PaddockError`."""


@dataclass(frozen=True, slots=True)
class ValidLine:
    line: NewLine
    key: bytes


class Validator:
    """Checks the lines of one file. `mistakes` and `model` are known when all lines have been read."""

    def __init__(self, endpoint: str, check: Check, *, longest: int) -> None:
        """`longest` is the largest body in bytes."""
        self._endpoint = endpoint
        self._check = check
        self._longest = longest + _OVERHEAD
        self._limit = longest
        self.mistakes: list[Mistake] = []
        self.more_mistakes = 0
        """Mistakes beyond those that are reported."""
        self.total = 0
        self.model: str | None = None
        self._model_line = 0

    def lines(self, path: Path) -> Iterator[ValidLine]:
        """The valid lines. Empty lines are skipped."""
        for number, start, data in read_lines(path, self._longest):
            if data is None:
                self._add(number, "line_too_long", f"the line has more than {self._longest} bytes")
            elif data.strip():
                self.total += 1
                found = self._valid(number, start, data)
                if found is not None:
                    yield found
        if not self.total and not self.mistakes:
            self._add(None, "empty_file", "the input file has no requests")

    def repeat(self, line: NewLine, first: int) -> None:
        """Report a custom_id that an earlier line has."""
        self._add(
            line.number,
            "duplicate_custom_id",
            f"custom_id {line.custom_id!r} is also that of line {first}",
            "custom_id",
        )

    def report(self) -> list[Mistake]:
        """All mistakes, by line, and how many are left out."""
        found = sorted(self.mistakes, key=lambda mistake: mistake.line or 0)
        if self.more_mistakes:
            found.append(Mistake("more_mistakes", f"{self.more_mistakes} more mistakes are not listed"))
        return found

    def _valid(self, number: int, start: int, data: bytes) -> ValidLine | None:
        try:
            fields = parse_line(data)
        except LineError as error:
            self._add(number, error.code, error.message, error.param)
            return None
        mistakes = len(self.mistakes) + self.more_mistakes
        custom_id = self._custom_id(number, fields)
        self._constant(number, fields, "method", "POST", "invalid_method")
        self._constant(number, fields, "url", self._endpoint, "invalid_url")
        checked = self._body(number, fields)
        if checked is not None and self.model is None:
            self.model, self._model_line = checked.model, number
        elif checked is not None and checked.model != self.model:
            reason = (
                f"the model is {checked.model!r}, but that of line {self._model_line} is {self.model!r}: a batch has "
            )
            self._add(number, "mismatched_model", reason + "one model", "body.model")
        if len(self.mistakes) + self.more_mistakes > mistakes or custom_id is None or checked is None:
            return None
        return ValidLine(NewLine(number, custom_id, start, len(data)), checked.key)

    def _custom_id(self, number: int, fields: dict[str, msgspec.Raw]) -> str | None:
        value = self._text(number, fields, "custom_id")
        if value is not None and not 0 < len(value) <= LONGEST_CUSTOM_ID:
            reason = f"custom_id has {len(value)} characters; the limits are 1 and {LONGEST_CUSTOM_ID}"
            self._add(number, "invalid_custom_id", reason, "custom_id")
            return None
        return value

    def _constant(self, number: int, fields: dict[str, msgspec.Raw], name: str, expected: str, code: str) -> None:
        value = self._text(number, fields, name)
        if value is not None and value != expected:
            self._add(number, code, f"{name} is {value[:200]!r}; it must be {expected!r} in this batch", name)

    def _text(self, number: int, fields: dict[str, msgspec.Raw], name: str) -> str | None:
        if name not in fields:
            self._add(number, "missing_field", f"the line has no {name}", name)
            return None
        try:
            return msgspec.json.decode(fields[name], type=str)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._add(number, "invalid_type", f"{name} must be a string", name)
            return None

    def _body(self, number: int, fields: dict[str, msgspec.Raw]) -> Checked | None:
        if "body" not in fields:
            self._add(number, "missing_field", "the line has no body", "body")
            return None
        body = bytes(fields["body"])
        if not body.startswith(b"{"):
            self._add(number, "invalid_type", "body must be an object", "body")
            return None
        if len(body) > self._limit:
            self._add(number, "line_too_long", f"the body has {len(body)} bytes; the limit is {self._limit}", "body")
            return None
        try:
            return self._check(body)
        except PaddockError as error:
            param = f"body.{error.param}" if error.param else "body"
            self._add(number, error.code, error.message, param)
            return None

    def _add(self, line: int | None, code: str, message: str, param: str | None = None) -> None:
        if len(self.mistakes) < MOST_MISTAKES:
            self.mistakes.append(Mistake(code, message, param, line))
        else:
            self.more_mistakes += 1


class LineError(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def parse_line(data: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a line. Raises `LineError`."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LineError("invalid_utf8", f"the line is not UTF-8 text: byte {error.start + 1} of it") from None
    try:
        # Decoded completely first: what is kept raw below is not checked.
        content: Any = msgspec.json.decode(data)
    except RecursionError:
        raise LineError("invalid_json_line", "the line is nested too deep") from None
    except msgspec.MsgspecError as error:
        raise LineError("invalid_json_line", f"the line is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise LineError("invalid_json_line", "the line must be a JSON object")
    for name in content:
        if name not in _FIELDS:
            raise LineError("unknown_field", f"unknown field {name[:80]!r}: a line has {', '.join(_FIELDS)}", name[:80])
    return msgspec.json.decode(data, type=dict[str, msgspec.Raw])


def read_lines(path: Path, longest: int) -> Iterator[tuple[int, int, bytes | None]]:
    """The number, the start and the bytes of each line; None for a line that is too long."""
    with path.open("rb", buffering=1 << 20) as file:
        start = number = 0
        if file.read(3) == b"\xef\xbb\xbf":  # a byte order mark, which some editors write
            start = 3
        else:
            file.seek(0)
        while data := file.readline(longest + 1):
            number += 1
            size = len(data)
            if size > longest and not data.endswith(b"\n"):
                while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                    size += len(rest)
                size += len(rest)
                yield number, start, None
            else:
                yield number, start, data
            start += size
