"""`paddock batch`, with real servers, and what it makes of its input and of results."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli.batches.following import Moment, follow, progress
from paddock.cli.batches.lines import Prompt, batch_lines, endpoint_of, settings
from paddock.cli.batches.records import BadInput, records, write_records
from paddock.cli.batches.tables import Results, answered
from paddock.cli.chat.server import ServerUnreachable
from tests.server import Server, wait_for
from tests.tiers import full

_PADDOCK = (sys.executable, "-m", "paddock", "batch")
_SOME = 40
"""Lines of 100 tokens: more than are answered before a change of the model is noticed."""


def run_batch(*words: str, cwd: Path, url: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PADDOCK_URL": url} if url else {"PADDOCK_SERVER__PORT": "1"})
    return subprocess.run(
        [*_PADDOCK, *words], capture_output=True, text=True, timeout=200, cwd=cwd, env=environment, check=False
    )


def _line(name: str, text: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def _write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def _read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def small(tmp_path: Path, tiny_models: dict[str, Path]) -> Path:
    """A model alone in a folder of its own."""
    model = tmp_path / "models" / "small.gguf"
    model.parent.mkdir()
    model.write_bytes(tiny_models["llama"].read_bytes())
    return model


@contextmanager
def _running(*words: str, cwd: Path, server: Server) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A `paddock batch run` to out.jsonl, and the id of its batch."""
    environment = os.environ | {"PADDOCK_URL": server.url}
    with subprocess.Popen([*_PADDOCK, "run", *words], cwd=cwd, env=environment, stderr=subprocess.PIPE) as run:
        saved = cwd / "out.jsonl.batch" / "run.json"
        wait_for(lambda: saved.exists() or run.poll() is not None, 60, "the batch to be created")
        yield run, json.loads(saved.read_bytes())["batch_id"]


def _state_of(server: Server, name: str) -> dict[str, Any]:
    batch: dict[str, Any] = server.client.get(f"/v1/batches/{name}").json()
    return batch


# ── with a server ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_life_of_a_batch(fake_server: Server, tmp_path: Path) -> None:
    file = _write(tmp_path / "in.jsonl", [_line(f"line-{number}", "hello") for number in range(3)])
    submitted = run_batch("submit", str(file), "-m", "fake", cwd=tmp_path, url=fake_server.url)
    assert submitted.returncode == 0, submitted.stderr
    name = submitted.stdout.strip()
    fetched = run_batch("fetch", name, "-o", "out.jsonl", "--wait", cwd=tmp_path, url=fake_server.url)
    assert (fetched.returncode, fetched.stdout) == (0, "out.jsonl\n"), fetched.stderr
    assert {line["custom_id"] for line in _read(tmp_path / "out.jsonl")} == {"line-0", "line-1", "line-2"}
    shown = run_batch("show", name, cwd=tmp_path, url=fake_server.url)
    assert "completed" in shown.stdout and "3 of 3 answered, 0 failed" in shown.stdout
    listed = run_batch("list", cwd=tmp_path, url=fake_server.url)
    assert [row.split()[:5] for row in listed.stdout.splitlines() if name in row] == [
        [name, "completed", "3", "0", "3"]
    ]
    cancelled = run_batch("cancel", name, cwd=tmp_path, url=fake_server.url)
    assert cancelled.returncode == 1 or cancelled.stdout.strip() == "completed"
    missing = run_batch("show", "batch_none", cwd=tmp_path, url=fake_server.url)
    assert missing.returncode == 1 and "batch_none" in missing.stderr


def test_records_are_answered_in_their_order(fake_server: Server, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('text,kind\n"a, ""b""",one\n"two\nlines",two\n', "utf-8")
    words = ("run", "in.csv", "-m", "fake", "--prompt", "What is {text}?", "--set", "max_tokens=4")
    done = run_batch(*words, cwd=tmp_path, url=fake_server.url)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "in.output.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["text"], row["kind"], row["error"]) for row in rows] == [
        ('a, "b"', "one", ""),
        ("two\nlines", "two", ""),
    ]
    assert all(row["answer"] for row in rows)
    assert not (tmp_path / "in.output.csv.batch").exists()
    again = run_batch(*words, cwd=tmp_path, url=fake_server.url)
    assert again.returncode == 1 and "in.output.csv exists" in again.stderr


def test_a_schema_gives_columns(fake_server: Server, tmp_path: Path) -> None:
    _write(tmp_path / "in.jsonl", [{"text": "good"}, {"text": "bad"}])
    schema = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema | {"additionalProperties": False}), "utf-8")
    words = ("run", "in.jsonl", "-o", "out.csv", "--prompt", "{text}?", "--schema", "schema.json")
    done = run_batch(*words, cwd=tmp_path, url=fake_server.url)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [list(row) for row in rows] == [["text", "mood", "error"]] * 2
    assert {row["mood"] for row in rows} <= {"good", "bad"}


def test_a_refused_file_is_explained(fake_server: Server, tmp_path: Path) -> None:
    _write(tmp_path / "in.jsonl", [_line("same", "a"), _line("same", "b"), _line("hot", "c", temperature="hot")])
    done = run_batch("run", "in.jsonl", "-m", "fake", cwd=tmp_path, url=fake_server.url)
    assert done.returncode == 1
    assert "line 2: custom_id" in done.stderr and "line 3: body.temperature" in done.stderr
    assert not (tmp_path / "in.output.jsonl").exists()
    _write(tmp_path / "in.jsonl", [_line("same", "a"), _line("other", "b")])
    corrected = run_batch("run", "in.jsonl", "-m", "fake", cwd=tmp_path, url=fake_server.url)
    assert corrected.returncode == 0, corrected.stderr
    assert len(_read(tmp_path / "in.output.jsonl")) == 2


def test_the_answers_before_a_change_of_the_model_are_kept(tmp_path: Path, small: Path) -> None:
    lines = [_line(f"line-{number}", "hello", max_tokens=100, ignore_eos=True) for number in range(_SOME)]
    _write(tmp_path / "in.jsonl", lines)
    with Server("--models-dir", str(small.parent), "--batch-in-flight", "1") as server:
        with _running("in.jsonl", "-m", "small", "-o", "out.jsonl", cwd=tmp_path, server=server) as (run, name):
            wait_for(lambda: _state_of(server, name)["request_counts"]["completed"], 60, "a line")
            os.utime(small, ns=(1, 1))
            assert run.stderr is not None
            told = run.stderr.read().decode()
        assert run.returncode == 1
        assert "the batch failed: the file of the model 'small' has changed" in told
        assert not (tmp_path / "out.jsonl.batch").exists()
        answered, failed = len(_read(tmp_path / "out.jsonl")), _read(tmp_path / "out.errors.jsonl")
        assert 0 < answered < _SOME == answered + len(failed)
        assert {line["error"]["code"] for line in failed} == {"model_changed"}
        fetched = run_batch("fetch", name, "-o", "again.jsonl", cwd=tmp_path, url=server.url)
        assert (fetched.returncode, fetched.stdout) == (1, "again.jsonl\nagain.errors.jsonl\n")
        assert "the batch failed: the file of the model" in fetched.stderr
        assert len(_read(tmp_path / "again.jsonl")) == answered


@full
def test_a_change_of_the_model_is_allowed(tmp_path: Path, small: Path) -> None:
    _write(tmp_path / "in.jsonl", [_line("a", "hello"), _line("b", "hello")])
    words = ("in.jsonl", "-m", "small", "--allow-change")
    with Server("--models-dir", str(small.parent), "--batch-may-load", "never") as server:
        submitted = run_batch("submit", *words, cwd=tmp_path, url=server.url).stdout.strip()
        with _running(*words, "-o", "out.jsonl", cwd=tmp_path, server=server) as (run, name):
            for batch in (submitted, name):
                wait_for(lambda batch=batch: _state_of(server, batch)["waiting_for"], 60, "the batch to wait")  # type: ignore[misc]
            os.utime(small, ns=(1, 1))
            for batch in (submitted, name):
                server.wait_for_line("the model of a batch has changed", batch)
            server.client.post("/admin/reload").raise_for_status()  # else the changed file is unloaded when noticed
            server.chat("hello", model="small", max_tokens=1)  # loads it
            assert run.stderr is not None
            told = run.stderr.read().decode()
        assert run.returncode == 0, told
        assert len(_read(tmp_path / "out.jsonl")) == 2
        fetched = run_batch("fetch", submitted, "-o", "submitted.jsonl", "--wait", cwd=tmp_path, url=server.url)
        assert fetched.returncode == 0, fetched.stderr


@full
@pytest.mark.parametrize("others", [[], ["hello"]])
def test_lines_that_fail_are_counted_and_the_first_is_explained(
    fake_server: Server, tmp_path: Path, others: list[str]
) -> None:
    texts = ["x" * 100_000, *others]
    _write(tmp_path / "in.jsonl", [_line(f"line-{number}", text) for number, text in enumerate(texts)])
    done = run_batch("run", "in.jsonl", "-m", "fake", "-o", "out.jsonl", cwd=tmp_path, url=fake_server.url)
    assert done.returncode == 1
    assert "1 failed, see out.errors.jsonl; the first: line-0: the prompt is too long" in done.stderr
    assert _read(tmp_path / "out.errors.jsonl")[0]["custom_id"] == "line-0"
    assert ("out.jsonl: " in done.stderr) == bool(others) == (tmp_path / "out.jsonl").exists()

    (tmp_path / "in.csv").write_text("text\n" + "\n".join(texts) + "\n", "utf-8")
    done = run_batch("run", "in.csv", "-m", "fake", "--prompt", "{text}", cwd=tmp_path, url=fake_server.url)
    assert done.returncode == 1
    assert "1 failed, see the column error; the first: row-1: the prompt is too long" in done.stderr


@full
def test_without_a_server_one_is_started_and_an_interrupted_run_goes_on(
    tmp_path: Path, tiny_models: dict[str, Path]
) -> None:
    lines = [_line(f"line-{number}", "hello", max_tokens=300, ignore_eos=True) for number in range(4)]
    _write(tmp_path / "in.jsonl", lines)
    words = ("run", "in.jsonl", "-m", str(tiny_models["llama"]), "-o", "out.jsonl")
    environment = os.environ | {"PADDOCK_SERVER__PORT": "1"}
    work = tmp_path / "out.jsonl.batch"
    with subprocess.Popen([*_PADDOCK, *words], cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as first:
        wait_for(lambda: (work / "run.json").exists() or first.poll() is not None, 60, "the batch to be created")
        first.send_signal(signal.SIGINT)
        assert first.stderr is not None
        told = first.stderr.read().decode()
    if first.returncode != 0:  # it was not done before the signal
        assert first.returncode == 130 and "goes on where it was" in told
        saved = json.loads((work / "run.json").read_bytes())
        assert saved["batch_id"].startswith("batch_")
        second = run_batch(*words, cwd=tmp_path)
        assert second.returncode == 0, second.stderr
        assert "beginning again" not in second.stderr
    assert sorted(line["custom_id"] for line in _read(tmp_path / "out.jsonl")) == [f"line-{n}" for n in range(4)]
    assert not work.exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("run", "in.jsonl"), "no url"),
        (("run", "none.csv", "--prompt", "{text}"), "none.csv: there is no such file"),
        (("run", "in.jsonl", "--prompt", "{other}"), "record 1: there is no column 'other'; there are text"),
        (("run", "in.jsonl", "--prompt", "{}"), "--prompt"),
        (("run", "in.jsonl", "--prompt", "{text"), "--prompt"),
        (("run", "in.jsonl", "--prompt", "{text}", "--set", "max_tokens"), "NAME=VALUE"),
        (("run", "in.jsonl", "--prompt", "{text}", "-o", "out.xlsx"), "out.xlsx"),
        (("run", "in.jsonl", "--system", "Be brief."), "--prompt"),
        (("run", "in.jsonl", "-m", "none.gguf", "--prompt", "{text}"), "none.gguf"),
        (("run", "table.parquet"), "a Parquet file has records: use --prompt"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    from click.testing import CliRunner

    from paddock.cli.batch import command

    _write(tmp_path / "in.jsonl", [{"text": "a"}])
    (tmp_path / "table.parquet").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = CliRunner().invoke(command, list(words))
    assert done.exit_code != 0
    assert problem.replace("no url", "url: a text is required") in done.output
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in.jsonl", "table.parquet"], "nothing is left"


# ── input ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_names = st.text("abcxyz_", min_size=1, max_size=4)
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_tables = st.lists(_names, min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, _texts)), min_size=1, max_size=4)
)


@given(rows=_tables, suffix=st.sampled_from([".csv", ".tsv", ".jsonl"]))
def test_records_are_read_as_they_were_written(
    rows: list[dict[str, str]], suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("table") / f"table{suffix}"
    write_records(path, lambda: iter(rows), source=path, added={})
    assert list(records(path)) == rows


@given(rows=_tables, before=_texts, after=_texts)
def test_columns_are_put_into_the_prompt_as_they_are(
    rows: list[dict[str, str]], before: str, after: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = _write(tmp_path_factory.mktemp("records") / "in.jsonl", rows)
    column = next(iter(rows[0]))
    escaped = [text.replace("{", "{{").replace("}", "}}") for text in (before, after)]
    prompt = Prompt(f"{escaped[0]}{{{column}}}{escaped[1]}", body={"max_tokens": 5})
    lines = [json.loads(line) for line in batch_lines(path, prompt, "m")]
    assert [line["custom_id"] for line in lines] == [f"row-{number}" for number in range(1, len(rows) + 1)]
    assert [line["body"]["messages"] for line in lines] == [
        [{"role": "user", "content": f"{before}{row[column]}{after}"}] for row in rows
    ]
    assert all(line["body"]["model"] == "m" and line["body"]["max_tokens"] == 5 for line in lines)


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), suffix=st.sampled_from([".csv", ".jsonl"]))
def test_any_file_is_read_or_refused(data: bytes, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / f"in{suffix}"
    path.write_bytes(data)
    for work in (lambda: list(batch_lines(path, Prompt("{a}"), None)), lambda: endpoint_of(path, None)):
        try:
            work()
        except BadInput as error:
            assert str(error)


def test_a_model_replaces_that_of_each_line(tmp_path: Path) -> None:
    path = _write(tmp_path / "in.jsonl", [_line("a", "x", model="other"), _line("b", "y")])
    assert [json.loads(line)["body"]["model"] for line in batch_lines(path, None, "mine")] == ["mine", "mine"]
    assert [json.loads(line) for line in batch_lines(path, None, None)] == _read(path)
    assert endpoint_of(path, None) == "/v1/chat/completions"


def test_values_of_settings_are_json_or_text() -> None:
    assert settings(["a=1", "b=x y", 'c={"d": [true]}', "e=", "f=g=h"]) == {
        "a": 1,
        "b": "x y",
        "c": {"d": [True]},
        "e": "",
        "f": "g=h",
    }


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_and_missing_results_are_told(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", [{"text": str(number)} for number in range(1, 5)])

    def success(name: str, text: str) -> dict[str, Any]:
        body = {"choices": [{"message": {"content": text}}]}
        return {"custom_id": name, "response": {"status_code": 200, "body": body}, "error": None}

    refused = {"status_code": 400, "body": {"error": {"message": "too long"}}}
    output = _write(tmp_path / "out.jsonl", [success("row-3", '{"a": 1}'), success("row-1", '{"a')])
    errors = _write(tmp_path / "errors.jsonl", [{"custom_id": "row-2", "response": refused, "error": None}])
    results = Results([output, errors])
    texts = [(row["answer"], row["error"]) for row in answered(source, results, fields=())]
    assert texts == [('{"a', None), (None, "too long"), ('{"a": 1}', None), (None, "no result")]
    values = [(row["a"], row["error"]) for row in answered(source, results, fields=["a"])]
    assert values[0] == (None, "the answer is not complete: it reached its token limit")
    assert values[1:] == [(None, "too long"), (1, None), (None, "no result")]
    results.close()


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _state(status: str, done: int = 0, failed: int = 0, tokens: int = 0, **more: Any) -> dict[str, Any]:
    counts = {"total": 8, "completed": done, "failed": failed}
    return {"id": "batch_1", "status": status, "request_counts": counts, "usage": {"output_tokens": tokens}, **more}


def test_progress_shows_speed_and_time_left() -> None:
    began, now = Moment(10.0, 1, 100), Moment(20.0, 3, 600)
    text = progress(_state("in_progress", 2, 1, 600), began, now)
    assert text == "[#########...............] 3 of 8 · 1 failed · 50 tokens/s · 25 s left"
    assert progress(_state("validating"), began, began) == "validating"
    waiting = progress(_state("in_progress", waiting_for="22:00"), began, began)
    assert waiting.endswith("1 of 8 · waiting: 22:00")


class _Restarting:
    """A server that is away for a while."""

    def __init__(self, *answers: dict[str, Any] | None) -> None:
        self._answers = iter(answers)

    def batch(self, _: str) -> dict[str, Any]:
        if (answer := next(self._answers)) is None:
            raise ServerUnreachable("no server answers")
        return answer


def test_a_restarted_server_is_waited_for() -> None:
    clock = iter(range(1000)).__next__
    api: Any = _Restarting(None, None, _state("in_progress", 4), None, _state("completed", 8))
    out = io.StringIO()
    ended = follow(api, _state("in_progress"), out=out, clock=clock, sleep=lambda _: None)
    assert ended["status"] == "completed"
    with pytest.raises(ServerUnreachable):
        follow(_Restarting(*[None] * 100), _state("in_progress"), out=out, clock=clock, sleep=lambda _: None)  # type: ignore[arg-type]
