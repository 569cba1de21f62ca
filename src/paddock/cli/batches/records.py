"""Tables for `paddock batch`: records are read from a file and written to one, in the format of its suffix."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
PARQUET = ".parquet"
_LONGEST_CELL = 1 << 30

Record = dict[str, Any]
Rows = Callable[[], Iterator[Record]]
"""All records of a table. Each call begins again with the first."""


class BadInput(ValueError):
    """A mistake of the input or the prompt. The message has the line."""


def records(path: Path) -> Iterator[Record]:
    """The rows of a CSV, TSV or Parquet file, or the objects of a JSONL file, with values that JSON has. Raises
    `BadInput`.
    """
    suffix = path.suffix.lower()
    if suffix == PARQUET:
        from paddock.cli.batches import parquet

        return parquet.records(path)
    return _read_csv(path) if suffix in (".csv", ".tsv") else _read_jsonl(path)


def write_records(path: Path, rows: Rows, *, source: Path, added: Mapping[str, Any]) -> None:
    """Write records of `source` with the columns that were `added`, each with its JSON schema. The suffix is one of
    `SUFFIXES`.
    """
    match path.suffix.lower():
        case ".csv" | ".tsv":
            _write_csv(path, rows())
        case ".jsonl":
            _write_jsonl(path, rows())
        case _:
            from paddock.cli.batches import parquet

            parquet.write(path, rows, source=source, added=added)


def check_format(path: Path) -> None:
    """Raises `BadInput` if the format of a table cannot be read or written here."""
    if path.suffix.lower() == PARQUET:
        from paddock.cli.batches import parquet

        parquet.check_installed()


def objects(path: Path) -> Iterator[tuple[int, Record]]:
    """The objects of a JSONL file with the numbers of their lines. Raises `BadInput`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadInput(f"line {number}: the line is not valid JSON: {error}") from None
            if not isinstance(value, dict):
                raise BadInput(f"line {number}: the line is not an object")
            yield number, value


def cell(value: Any) -> Any:
    """A value as one cell: lists and objects are JSON."""
    return value if value is None or isinstance(value, str | int | float) else msgspec.json.encode(value).decode()


def _read_csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(_LONGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=_delimiter(path), strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise BadInput(f"line {reader.line_num}: the row does not have {len(row)} columns as the first")
                yield row
        except UnicodeDecodeError:
            raise BadInput(f"line {reader.line_num + 1}: the text is not UTF-8") from None
        except csv.Error as error:
            raise BadInput(f"line {reader.line_num}: {error}") from None


def _read_jsonl(path: Path) -> Iterator[Record]:
    for number, value in objects(path):
        if not value:
            raise BadInput(f"line {number}: the object is empty")
        yield value


def _write_csv(path: Path, rows: Iterator[Record]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        output: csv.DictWriter[str] | None = None
        for row in rows:
            if output is None:
                output = csv.DictWriter(file, list(row), delimiter=_delimiter(path), extrasaction="ignore")
                output.writeheader()
            output.writerow({name: cell(value) for name, value in row.items()})


def _write_jsonl(path: Path, rows: Iterator[Record]) -> None:
    with path.open("wb") as file:
        file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","
