"""The name on the Python index is `paddock-llm`. `paddock` is another project, which no document may install."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.libraries import PACKAGE

ROOT = Path(__file__).parents[1]
_KINDS = {".md", ".py", ".toml", ".txt", ".yaml", ".yml", ".json", ".conf", ".ts", ".tsx", ""}
_SKIPPED = {".git", ".venv", ".venv-dev", "node_modules", "page", "__pycache__"}
# "paddock[lab]", and "pip install … paddock" unless a path, an option or another name follows.
_OTHER = re.compile(r"(?<![\w./-])paddock\[[a-z]|pip install (?:-\S+ )*[\'\"]?paddock(?![\w./-]*[\w/-])")


def _files(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _SKIPPED and not path.name.startswith("."):
            yield from _files(path)
        elif path.is_file() and path.suffix in _KINDS and path != Path(__file__):
            yield path


def test_the_distribution_and_its_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == "paddock-llm"
    assert project["scripts"] == {"paddock": "paddock.cli:main"}


def test_the_prebuilt_library_is_the_one_that_messages_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert PACKAGE in project["dependencies"], "pinned exactly: another version may have other structs"
    assert not any(name.startswith("llama-cpp-python") for name in project["dependencies"]), "it would compile"


def test_no_file_installs_the_other_project() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _files()
        for match in _OTHER.finditer(path.read_text("utf-8", "replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install 'paddock[cluster]'", True),
        ("pip install paddock again", True),
        ("pip install -U paddock.", True),
        ("pip install 'paddock-llm[cluster]'", False),
        ("pip install paddock-llm", False),
        ("/opt/paddock/bin/pip install -c constraints.txt llama-cpp-python", False),
        ("pip install paddock-0.1.0-py3-none-any.whl", False),
    ],
)
def test_the_pattern_finds_the_other_name(text: str, wrong: bool) -> None:
    assert bool(_OTHER.search(text)) is wrong
