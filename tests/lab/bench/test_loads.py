from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddock_lab.bench.loads import BadScenario, Load, points, read

_SCENARIOS = Path(__file__).parents[3] / "scenarios"


def _file(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[load.a]\nconcurency = 4", ["load.a", "concurency"]),
        ("[load.a]\nconcurrency = 0", ["load.a", "concurrency"]),
        ("[load.a]\nconcurrency = []", ["load.a", "concurrency"]),
        ("[load.a]\nprompt = 'long'", ["load.a", "long", "`prompt`"]),
        ("[load.a]\noutput = true", ["load.a", "`output`"]),
        ("[load.a]\nshared_share = 1.5", ["load.a", "`shared_share`"]),
        ("[load.a]\nshows = ['tokens']", ["load.a", "shows", "tokens"]),
        ("[load.a]\nrate = 1\nconcurrency = 1", ["load.a", "exactly one of concurrency, rate"]),
        ("[load.a]\nduration = 1\nrequests = 1", ["load.a", "exactly one of duration, requests"]),
        ("[load.a]\nrate = 1\nrequests_per_client = 1", ["load.a", "requests_per_client"]),
        ("[load.a]\nduration = 1\ninterleaved = true", ["load.a", "interleaved"]),
        ("[load.a]\nagainst = 'b'", ["load.a", "`against`", "'b'"]),
        ("[load.a]\nconcurrency = [2, 2]", ["load.a", "concurrency", "repeated"]),
        ("[load.a]\npasses = ['', '']", ["load.a", "passes", "repeated"]),
        ("[load.a]\nrate = inf", ["load.a", "rate"]),
        ("[load.a]\nrate = nan", ["load.a", "rate"]),
        ("[load]\n", ["load"]),
        ("[loads.a]\n", ["loads"]),
        ("rounds = 3", ["rounds"]),
        ("[load.a", ["scenario.toml"]),
    ],
)
def test_an_error_in_a_file_names_its_key(text: str, parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(BadScenario) as problem:
        read(_file(tmp_path, text), {})
    for part in [*parts, "scenario.toml"]:
        assert part in str(problem.value)


def test_flags_apply_to_all_loads_and_replace_their_alternatives(tmp_path: Path) -> None:
    path = _file(
        tmp_path, "[load.a]\nconcurrency = [1, 2]\nrequests = 5\nprompt = 7\n[load.b]\nrate = 2.0\nduration = 9"
    )
    for load in read(path, {"rate": [1.5, 3.0], "duration": 2.0, "output": "uniform:3-4"}).values():
        assert (load.concurrency, load.rate, load.requests, load.duration) == (None, [1.5, 3.0], None, 2.0)
        assert str(load.output) == "uniform:3-4"
    assert str(read(path, {})["a"].prompt) == "7"


def test_loads_can_be_selected(tmp_path: Path) -> None:
    path = _file(tmp_path, "[load.a]\n[load.b]\n[load.c]\n")
    assert list(read(path, {}, ["c", "a"])) == ["c", "a"]
    with pytest.raises(BadScenario, match="unknown load 'd'; the loads are a, b, c"):
        read(path, {}, ["d"])


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"concurrency": 4, "requests": 9}, [("x", 4, None, 9)]),
        (
            {"concurrency": [1, 4], "requests_per_client": 3},
            [("x, 1 at once", 1, None, 3), ("x, 4 at once", 4, None, 12)],
        ),
        ({"rate": [0.5, 2], "duration": 3}, [("x, 0.5/s", None, 0.5, None), ("x, 2/s", None, 2, None)]),
    ],
)
def test_several_values_make_a_curve(keys: dict[str, Any], expected: list[tuple[object, ...]]) -> None:
    found = [point for _, point in points({"x": Load(**keys)})]
    assert [(point.label, point.clients, point.rate, point.requests) for point in found] == expected


def test_a_conversations_file_is_relative_to_the_scenario(tmp_path: Path) -> None:
    path = _file(tmp_path, "[load.a]\nconversations = 'dialogue.jsonl'")
    assert read(path, {})["a"].conversations == str(tmp_path / "dialogue.jsonl")
    assert read(path, {"conversations": "mine.jsonl"})["a"].conversations == "mine.jsonl"


def test_a_load_with_a_document_and_further_fields(tmp_path: Path) -> None:
    load = read(_file(tmp_path, "[load.a]\ndocument = 'x.md'\n[load.a.body]\nresponse_format = {type = 'text'}"), {})[
        "a"
    ]
    assert load.document == str(tmp_path / "x.md")
    assert load.body == {"response_format": {"type": "text"}}
    with pytest.raises(BadScenario, match="exclude each other"):
        read(_file(tmp_path, "[load.a]\ndocument = 'x.md'\nconversations = 'y.jsonl'"), {})


@pytest.mark.parametrize("path", sorted(_SCENARIOS.glob("*.toml")), ids=lambda path: path.name)
def test_the_scenarios_of_the_repository_are_valid(path: Path) -> None:
    assert list(points(read(path, {})))
