"""Parquet tables of `paddock batch`. Most tests need pyarrow: 55 MB, and not among the packages of the tests."""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli.batch import command
from paddock.cli.batches import parquet
from paddock.cli.batches.lines import Prompt, batch_lines
from paddock.cli.batches.records import BadInput, records, write_records
from tests.cli.test_batch import run_batch
from tests.server import Server

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
_NAMES = st.text("abc", min_size=1, max_size=2)


def _table(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def _read(path: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path)


@pytest.mark.parametrize(
    ("words", "place"),
    [(("in.parquet",), "-o in.output.parquet"), (("in.csv", "-o", "out.parquet"), "-o out.parquet")],
)
def test_without_the_package_the_extra_is_named(
    words: tuple[str, ...], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.parquet").touch()
    (tmp_path / "in.csv").write_text("text\na\n", "utf-8")
    done = CliRunner().invoke(command, ["run", *words, "--prompt", "{text}"])
    assert done.exit_code == 1
    assert f"{place}: Parquet needs the package pyarrow: pip install 'paddock-llm[parquet]'" in done.output
    read = CliRunner().invoke(command, ["run", "in.parquet", "-o", "out.csv", "--prompt", "{text}"])
    assert "in.parquet: Parquet needs the package pyarrow" in read.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "in.parquet"], "nothing is left"


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (set(), "text"),
        ({"integer"}, "integer"),
        ({"integer", "number"}, "number"),
        ({"integer", "long"}, "integer"),
        ({"long", "number"}, "text"),
        ({"boolean", "integer"}, "text"),
        ({"number", "text"}, "text"),
    ],
)
def test_a_column_has_one_type(seen: set[str], kind: str) -> None:
    assert parquet._kind(seen) == kind


@needs_pyarrow
def test_a_table_keeps_its_columns_and_gets_answers(fake_server: Server, tmp_path: Path) -> None:
    import pyarrow

    when = [datetime(2026, 11, 18, 9, 30, tzinfo=UTC), None, datetime(2026, 1, 1, tzinfo=UTC)]
    columns = {
        "text": ["good", 'a "b"\n{c}', "bad"],
        "when": pyarrow.array(when, pyarrow.timestamp("ns", "UTC")),
        "cost": pyarrow.array([Decimal("1.50"), None, Decimal("2.25")], pyarrow.decimal128(8, 2)),
        "kind": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
        "parts": [[1, 2], [], None],
    }
    source = _table(tmp_path / "in.parquet", columns, row_group_size=2)
    words = ("run", "in.parquet", "-m", "fake", "--prompt", "What is {text} at {when} for {cost}?")
    done = run_batch(*words, "--set", "max_tokens=4", cwd=tmp_path, url=fake_server.url)
    assert done.returncode == 0, done.stderr
    before, after = _read(source), _read(tmp_path / "in.output.parquet")
    assert after.column_names == [*before.column_names, "answer", "error"]
    assert after.select(before.column_names).equals(before), "values and types are those of the input"
    assert all(after["answer"].to_pylist()) and after["error"].to_pylist() == [None] * 3


@needs_pyarrow
def test_a_schema_gives_columns_with_its_types(fake_server: Server, tmp_path: Path) -> None:
    _table(tmp_path / "in.parquet", {"text": ["a", "b"], "mood": [1, 2]})
    properties = {"mood": {"enum": ["good", "bad"]}, "sure": {"type": "boolean"}, "stars": {"enum": [5]}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    (tmp_path / "schema.json").write_text(json.dumps(schema), "utf-8")
    words = ("run", "in.parquet", "--prompt", "{text}", "--schema", "schema.json")
    done = run_batch(*words, cwd=tmp_path, url=fake_server.url)
    assert done.returncode == 0, done.stderr
    after = _read(tmp_path / "in.output.parquet")
    assert {field.name: str(field.type) for field in after.schema} == {
        "text": "string",
        "mood": "string",
        "sure": "bool",
        "stars": "int64",
        "error": "string",
    }
    assert set(after["mood"].to_pylist()) <= {"good", "bad"} and after["stars"].to_pylist() == [5, 5]


@needs_pyarrow
@given(rows=st.lists(st.dictionaries(_NAMES, _VALUES, min_size=1), min_size=1, max_size=12), part=st.integers(1, 5))
def test_records_of_other_formats_become_columns(
    rows: list[dict[str, Any]], part: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("table") / "out.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_FEW_ROWS", part)
        write_records(path, lambda: iter(rows), source=Path("in.jsonl"), added={})
    read = list(records(path))
    names = {name for row in rows for name in row}
    assert [set(row) for row in read] == [names] * len(rows)
    for name in names:
        values = [row.get(name) for row in rows]
        found = [row[name] for row in read]
        if found != values:  # several kinds, as texts
            assert [None if one is None else str(one) for one in found] == found
            assert [value if isinstance(value, str) or value is None else json.dumps(value) for value in values] == [
                value if isinstance(value, str) or value is None else json.dumps(json.loads(value_read))
                for value, value_read in zip(values, found, strict=True)
            ]


@needs_pyarrow
@given(count=st.integers(1, 40), group=st.integers(1, 15), part=st.integers(1, 4000))
def test_any_row_groups_give_the_same_rows(
    count: int, group: int, part: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("groups")
    texts = ["x" * (number * 7 % 90) for number in range(count)]
    source = _table(folder / "in.parquet", {"n": list(range(count)), "text": texts}, row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_PART_BYTES", part)
        rows = list(records(source))
        assert rows == [{"n": number, "text": text} for number, text in enumerate(texts)]
        answers = [row | {"answer": f"a{row['n']}"} for row in rows]
        added = {"answer": {"type": "string"}}
        write_records(folder / "out.parquet", lambda: iter(answers), source=source, added=added)
    assert _read(folder / "out.parquet").to_pylist() == answers


@needs_pyarrow
def test_values_that_json_does_not_have_are_texts(tmp_path: Path) -> None:
    import pyarrow

    nanoseconds = pyarrow.array([1_700_000_000_123_456_789], pyarrow.timestamp("ns"))
    columns = {
        "day": [date(2026, 11, 18)],
        "hour": [time(9, 30)],
        "long": [timedelta(seconds=90)],
        "exact": [Decimal("1.50")],
        "raw": [b"\0\xff"],
        "fine": nanoseconds,
        "nested": [{"a": [date(2026, 1, 1)]}],
        "map": pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    }
    path = _table(tmp_path / "in.parquet", columns)
    assert list(records(path)) == [
        {
            "day": "2026-11-18",
            "hour": "09:30:00",
            "long": "PT90S",
            "exact": "1.50",
            "raw": "AP8=",
            "fine": "2023-11-14T22:13:20.123456",
            "nested": {"a": ["2026-01-01"]},
            "map": [("k", 1)],
        }
    ]
    line = json.loads(next(batch_lines(path, Prompt("{day} {exact} {nested}"), None)))
    assert line["body"]["messages"][0]["content"] == '2026-11-18 1.50 {"a":["2026-01-01"]}'


@needs_pyarrow
def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(BadInput, match="the Parquet file cannot be read"):
        list(records(tmp_path / "bad.parquet"))
    twice = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    pyarrow.parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(BadInput, match="two columns 'a'"):
        list(records(tmp_path / "twice.parquet"))
