from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli import main
from paddock.seeds import seed_of
from paddock_lab.determinism.comparing import Transcript, first_difference
from paddock_lab.determinism.experiment import Condition, Observation
from paddock_lab.determinism.findings import findings, mismatches
from paddock_lab.determinism.jobs import Job, built_in, from_file
from tests.lab.runs import page, raw, run, table
from tests.lab.stand_in import stand_in, url_of
from tests.tiers import full

_DETERMINISTIC = "{python} -m paddock serve -m fake: -np 3 --deterministic --port {port}"
_COLD, _WARM = Condition("cold", "alone"), Condition("warm", "alone")

_deltas = st.lists(st.tuples(st.sampled_from(["content", "reasoning_content"]), st.text(min_size=1, max_size=4)))
_transcripts = st.builds(Transcript, _deltas.map(tuple), st.sampled_from(["stop", "length", None]))


def _transcript(text: str) -> Transcript:
    return Transcript(tuple(("content", letter) for letter in text), "stop")


@given(_transcripts, _transcripts)
def test_only_identical_streams_have_no_difference(one: Transcript, other: Transcript) -> None:
    assert first_difference(one, one) is None
    found = first_difference(one, other)
    assert (found is None) == (one == other)
    if found and found.what == "text":
        assert one.data[: found.at] == other.data[: found.at]
        assert one.data[found.at : found.at + 1] != other.data[found.at : found.at + 1]
    elif found:
        assert one.data == other.data


def test_a_difference_shows_the_text_on_both_sides() -> None:
    found = first_difference(_transcript("Die Größe zählt"), _transcript("Die Größe fehlt"))
    assert found is not None
    assert (found.at, found.what) == (12, "text")
    assert (found.reference, found.other) == ("Die Größe ▸zählt", "Die Größe ▸fehlt")
    shorter = first_difference(_transcript("abc"), _transcript("ab"))
    assert shorter is not None
    assert (shorter.at, shorter.reference, shorter.other) == (2, "ab▸c", "ab▸")


def test_different_chunks_are_a_difference() -> None:
    found = first_difference(_transcript("abc"), Transcript((("content", "a"), ("content", "bc")), "stop"))
    assert found is not None
    assert (found.at, found.what, found.other) == (1, "chunks", "('content', 'bc')")


def test_built_in_jobs_have_all_kinds_of_prompts_and_seeds_and_never_change() -> None:
    jobs = built_in(42)
    assert jobs == built_in(42) == built_in(60)[:42]
    assert len({job.id for job in jobs}) == 42
    assert {len([job for job in jobs if job.kind == kind]) for kind in {job.kind for job in jobs}} == {6}
    derived = [job for job in jobs if job.seed_from == "job id"]
    assert len(derived) == 21
    assert all(job.seed == seed_of(job.id) for job in derived)
    assert all(job.messages[-1]["role"] == "user" for job in jobs)


def test_prompts_are_read_from_text_and_json_lines(tmp_path: Path) -> None:
    plain, lines, broken = tmp_path / "a.txt", tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    plain.write_text("First\n\n  Zweite Größe \n", "utf-8")
    lines.write_text('{"prompt": "x", "id": "mine"}\n{"messages": [{"role": "user", "content": "y"}]}\n')
    broken.write_text('{"prompt": "x"}\n{"text": "y"}\n')
    assert [job.messages[0]["content"] for job in from_file(plain)] == ["First", "Zweite Größe"]
    assert [(job.id, job.messages[0]["content"]) for job in from_file(lines)] == [("mine", "x"), ("job-0002", "y")]
    result = CliRunner().invoke(main, ["lab", "determinism", "--prompts", str(broken), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "prompt 2 is not an object" in result.output
    broken.write_text('{"prompt": "x", "id": 1}\n{"prompt": "y", "id": "1"}\n')
    with pytest.raises(ValueError, match="several prompts have the id '1'"):
        from_file(broken)


def test_answers_are_compared_with_the_first_answer() -> None:
    job = Job("j", "question", [], 5, "chosen")
    observations = [
        Observation(job, "a", _COLD, None, "connection lost"),
        Observation(job, "b", _COLD, _transcript("same")),
        Observation(job, "a", _WARM, _transcript("some")),
        Observation(job, "b", _WARM, _transcript("same")),
    ]
    (only,) = mismatches(observations)
    assert (only.observation.replica, only.reference.replica, only.difference.at) == ("a", "b", 1)
    found = findings(observations, [only], 0)
    assert found.summary[0] == "1 of 2 comparisons differ, in 1 of 1 jobs."
    assert "j (question, seed 5), warm, alone on a, differs from cold, alone on b at byte 1 (text)" in found.summary[1]
    assert found.tables[0].rows == [
        ("cold, alone", "a", 0, 0, 0, 1),
        ("cold, alone", "b", 1, 1, 0, 0),
        ("warm, alone", "a", 1, 0, 1, 0),
        ("warm, alone", "b", 1, 1, 0, 0),
    ]
    assert found.notes == ["1 requests failed, the first (j) with: connection lost"]
    assert findings([], [], 0).summary == []


@full
def test_deterministic_replicas_pass(tmp_path: Path) -> None:
    status, output = run(
        "determinism", "--server", _DETERMINISTIC, "--count", "7", "--max-tokens", "6", "--out", str(tmp_path)
    )
    assert status == 0, output
    assert "All of 49 comparisons are identical, byte for byte and chunk by chunk." in output
    observations = raw(tmp_path)
    assert len(observations) == 7 * 2 * 4
    assert {(each["cache"], each["load"]) for each in observations} == {
        *(("cold", "alone"), ("warm", "alone"), ("cold", "loaded"), ("warm", "loaded")),
    }
    assert [row["identical"] for row in table(tmp_path)] == ["7"] * 8
    assert "All of 49 comparisons" in page(tmp_path)


@full
def test_the_report_shows_the_first_difference(tmp_path: Path) -> None:
    with stand_in("grass", " grün") as one, stand_in("grass", " grau") as other:
        status, output = run(
            "determinism", "--server", f"one={url_of(one)}", "--server", f"other={url_of(other)}",
            "--count", "2", "--out", str(tmp_path),
        )  # fmt: skip
    assert status == 1, output
    assert "6 of 10 comparisons differ, in 2 of 2 jobs." in output
    assert "cold, alone on other, differs from cold, alone on one at byte 8 (text): 'grass gr▸ün' there" in output
    assert "not restarted" in output
    assert len(raw(tmp_path)) == 2 * 2 * 3
    assert "Differences" in page(tmp_path)
    assert one.bodies[0]["seed"] in (1, seed_of("job-0002"))


@pytest.mark.parametrize("sources", [["http://127.0.0.1:1"], ["a", "b", "c"]])
def test_two_replicas_are_required(sources: list[str], tmp_path: Path) -> None:
    options = [part for source in sources for part in ("--server", source)]
    result = CliRunner().invoke(main, ["lab", "determinism", *options, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "give --server once with a command, or twice" in result.output
