"""Which libraries must be tried before they are used."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from paddock.libraries import VARIABLE, Found, candidates, is_in_doubt, note_trial, trials, was_tried
from tests.libraries.test_search import places

__all__ = ["places"]

_TESTED = {"xllamacpp": "2026.9.11063", "llama-cpp-python": "0.3.36"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def _install(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(
    ("versions", "in_doubt"),
    [
        (_TESTED, {"the system"}),
        ({**_TESTED, "xllamacpp": "2026.9.11064"}, {"the system", "xllamacpp"}),
        ({"xllamacpp": _TESTED["xllamacpp"]}, {"the system", "llama-cpp-python"}),
    ],
)
def test_other_builds_than_the_tested_ones_are_in_doubt(
    versions: dict[str, str],
    in_doubt: set[str],
    environment: dict[str, str],
    places: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _install(monkeypatch, versions)
    found = list(candidates(environment))
    assert len(found) == 4
    assert {each.origin for each in found if is_in_doubt(each, environment)} == in_doubt
    for each in found:  # the same file, named by a variable
        [named] = candidates({**environment, VARIABLE: str(each.path)})
        assert is_in_doubt(named, environment) == (each.origin in in_doubt)
    assert is_in_doubt(Found(Path("/none/libllama.so"), VARIABLE), environment)


def test_a_trial_holds_for_the_same_content(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, other = tmp_path / "libllama.so", tmp_path / "more" / "libllama.so"
    other.parent.mkdir()
    for path in (library, other):
        path.write_bytes(b"one")
    assert not was_tried(library, environment)
    note_trial(library, environment)
    note_trial(library, environment)
    assert was_tried(library, environment)
    assert not was_tried(other, environment)
    note_trial(other, environment)
    assert was_tried(library, environment) and was_tried(other, environment)
    library.write_bytes(b"another one")
    assert not was_tried(library, environment) and was_tried(other, environment)
    (tmp_path / "more" / "libggml-cpu.so").write_bytes(b"kernels")
    assert not was_tried(other, environment), "a file of ggml is beside it now"
    note_trial(other, environment)
    monkeypatch.setattr(trials, "__version__", "99")
    assert not was_tried(other, environment), "another version may try more"


@pytest.mark.parametrize("content", [b"", b"no JSON", b'{"a": 1}'])
def test_a_damaged_record_is_written_again(tmp_path: Path, environment: dict[str, str], content: bytes) -> None:
    library = tmp_path / "libllama.so"
    library.write_bytes(b"one")
    note_trial(library, environment)
    record = next((tmp_path / "cache").rglob("tried.json"))
    record.write_bytes(content)
    assert not was_tried(library, environment)
    note_trial(library, environment)
    assert was_tried(library, environment)


def test_only_the_last_trials_are_kept(tmp_path: Path, environment: dict[str, str]) -> None:
    libraries = [tmp_path / f"{number}.so" for number in range(60)]
    for path in libraries:
        path.touch()
        note_trial(path, environment)
    assert [was_tried(path, environment) for path in libraries] == [False] * 10 + [True] * 50
