"""Parquet tables for `paddock batch`, read and written a part at a time. They need the extra `parquet`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import msgspec

from paddock.cli.batches.records import PARQUET, BadInput, Record, Rows

_MISSING = "Parquet needs the package pyarrow: pip install 'paddock-llm[parquet]'"
_PART_BYTES = 8 << 20
"""About so much of a table is in memory at once, as Arrow has it."""
_PART_ROWS = 1 << 16
_FEW_ROWS = 4096
"""Of a table that is not Parquet, whose rows have no known size."""
_INT64, _EXACT = 1 << 63, 1 << 53
"""Integers up to the second are also exact as numbers; longer ones are not."""
_KINDS = {"boolean": {"boolean"}, "integer": {"integer", "long"}, "number": {"integer", "number"}}
_DECLARED = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


def check_installed() -> None:
    """Raises `BadInput`, which names the extra."""
    _pyarrow()


def records(path: Path) -> Iterator[Record]:
    """Values that JSON does not have are texts: times as in ISO 8601, decimals, bytes in base64. Raises `BadInput`."""
    number = 1
    for part in _parts(path):
        try:
            for row in _without_nanoseconds(part).to_pylist():
                yield msgspec.to_builtins(row, str_keys=True)
                number += 1
        except (TypeError, ValueError) as error:  # those of pyarrow are ValueErrors
            raise BadInput(f"record {number}: a value cannot be read: {error}") from None


def write(path: Path, rows: Rows, *, source: Path, added: Mapping[str, Any]) -> None:
    """Columns of a `source` that is Parquet keep their types. Any other column is of booleans, integers, numbers or
    texts; if it has several of these, lists or objects, it is of texts.
    """
    pyarrow, parquet = _pyarrow()
    parts = _parts(source) if source.suffix.lower() == PARQUET else None
    kept = parquet.read_schema(source) if parts is not None else pyarrow.schema([])
    fields = [field for field in kept if field.name not in added]
    known = frozenset(field.name for field in fields)
    kinds = {name: _kind(seen) for name, seen in _kinds_seen(rows(), added, known).items()}
    types = {
        "boolean": pyarrow.bool_(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "text": pyarrow.string(),
    }
    schema = pyarrow.schema([*fields, *((name, types[kind]) for name, kind in kinds.items())])
    found = rows()
    with parquet.ParquetWriter(path, schema) as output:
        while True:
            part = next(parts, None) if parts is not None else None
            some = list(itertools.islice(found, _FEW_ROWS if part is None else part.num_rows))
            if not some:
                return
            columns = [part.column(field.name) for field in fields] if part is not None else []
            for name, kind in kinds.items():
                columns.append(pyarrow.array([_value(row.get(name), kind) for row in some], types[kind]))
            output.write_batch(pyarrow.record_batch(columns, schema=schema))


def _kinds_seen(rows: Iterator[Record], added: Mapping[str, Any], known: Set[str]) -> dict[str, set[str]]:
    """Of each column whose type is not known, the kinds of its values and the declared one."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if name in known:
                continue
            if name not in seen:
                declared = _declared(added.get(name))
                seen[name] = {declared} if declared is not None else set()
            if value is not None:
                seen[name].add(_kind_of(value))
    return seen


def _declared(schema: Any) -> str | None:
    declared = schema.get("type") if isinstance(schema, dict) else None
    return _DECLARED.get(declared) if isinstance(declared, str) else None


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            return "text"
        return "integer" if abs(value) <= _EXACT else "long"
    return "number" if isinstance(value, float) else "text"


def _kind(seen: set[str]) -> str:
    for kind, of in _KINDS.items():
        if seen and seen <= of:
            return kind
    return "text"


def _value(value: Any, kind: str) -> Any:
    if value is None or kind not in ("number", "text"):
        return value
    if kind == "number":
        return float(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _parts(path: Path) -> Iterator[Any]:
    """Record batches of a bounded size. Raises `BadInput`."""
    pyarrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise BadInput(f"there are two columns {twice[0]!r}")
            yield from file.iter_batches(batch_size=_rows_at_once(file.metadata))
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"the Parquet file cannot be read: {error}") from None


def _rows_at_once(metadata: Any) -> int:
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size // group.num_rows for group in groups if group.num_rows), default=0)
    return max(1, min(_PART_ROWS, _PART_BYTES // max(1, row_bytes)))


def _without_nanoseconds(part: Any) -> Any:
    """Python's times have microseconds."""
    pyarrow, _ = _pyarrow()
    columns = []
    for column in part.columns:
        type = column.type
        if pyarrow.types.is_timestamp(type) and type.unit == "ns":
            column = column.cast(pyarrow.timestamp("us", type.tz), safe=False)
        elif pyarrow.types.is_duration(type) and type.unit == "ns":
            column = column.cast(pyarrow.duration("us"), safe=False)
        elif pyarrow.types.is_time64(type) and type.unit == "ns":
            column = column.cast(pyarrow.time64("us"), safe=False)
        columns.append(column)
    return pyarrow.RecordBatch.from_arrays(columns, names=part.schema.names)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadInput(_MISSING) from None
    return pyarrow, pyarrow.parquet
