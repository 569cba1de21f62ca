"""The answers of a batch beside the records that they answer, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paddock.cli.batches.lines import ROW
from paddock.cli.batches.records import records

ANSWER, PROBLEM = "answer", "error"


class Results:
    """Result files of a batch, found by `custom_id`. Only places are kept in memory."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [path.open("rb") for path in paths]
        self._places: dict[str, tuple[int, int]] = {}
        for index, file in enumerate(self._files):
            start = 0
            for line in file:
                self._places[msgspec.json.decode(line, type=_Named).custom_id] = index, start
                start += len(line)

    def answer(self, custom_id: str) -> tuple[str | None, str | None]:
        """The text of the answer, or what went wrong."""
        if (place := self._places.get(custom_id)) is None:
            return None, "no result"
        index, start = place
        self._files[index].seek(start)
        return answer_of(msgspec.json.decode(self._files[index].readline()))

    def close(self) -> None:
        for file in self._files:
            file.close()


class _Named(msgspec.Struct):
    custom_id: str


def answer_of(line: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The text of a result line's chat completion, or what went wrong."""
    response, error = line.get("response"), line.get("error")
    if response is not None and response.get("status_code") == 200:
        message = response["body"]["choices"][0]["message"]
        return message.get("content") or "", None
    problem = error or (response or {}).get("body", {}).get("error") or {}
    return None, problem.get("message") or "failed"


def first_failure(errors: Path | None) -> str:
    """The `custom_id` of the first line of a file of errors, and what went wrong. Empty: no line failed."""
    if errors is None:
        return ""
    with errors.open("rb") as file:
        line = msgspec.json.decode(file.readline())
    return f"{line['custom_id']}: {answer_of(line)[1]}"


def columns(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that `answered` adds, with their JSON schemas: the `properties` of the answers, or their text."""
    text = {"type": "string"}
    return {**(properties or {ANSWER: text}), PROBLEM: text}


def answered(source: Path, results: Results, *, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The records in their order, with the answer and the error. With `fields`, the answer is an object by a schema,
    whose properties with these names are columns.
    """
    for number, record in enumerate(records(source), 1):
        text, problem = results.answer(ROW.format(number))
        if not fields:
            yield {**record, ANSWER: text, PROBLEM: problem}
            continue
        values: Mapping[str, Any] = {}
        if text is not None:
            try:
                found = msgspec.json.decode(text)
                values = found if isinstance(found, dict) else {}
            except msgspec.DecodeError:
                problem = "the answer is not complete: it reached its token limit"
        yield {**record, **{name: values.get(name) for name in fields}, PROBLEM: problem}
