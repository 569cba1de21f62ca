"""The conda recipe and the Homebrew formula agree with pyproject.toml. Nothing builds them here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
RECIPE = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text("utf-8"))
FORMULA = (ROOT / "deploy" / "homebrew" / "paddock.rb").read_text("utf-8")


def test_both_have_the_version() -> None:
    assert RECIPE["context"]["version"] == PROJECT["version"]
    assert f"paddock_llm-{PROJECT['version']}.tar.gz" in FORMULA


def test_the_recipe_requires_the_same() -> None:
    ours = {entry for entry in PROJECT["dependencies"] if not entry.startswith("xllamacpp")}
    (compiled,) = PROJECT["optional-dependencies"]["llama-cpp-python"]
    required = {entry.replace(" ", "") for entry in RECIPE["requirements"]["run"]}
    assert required == ours | {compiled, f"python{PROJECT['requires-python']}"}
    (entry,) = RECIPE["build"]["python"]["entry_points"]
    assert entry == f"paddock = {PROJECT['scripts']['paddock']}"


def test_both_say_that_they_are_untested() -> None:
    for file in ("conda/recipe.yaml", "homebrew/paddock.rb"):
        assert "UNTESTED" in (ROOT / "deploy" / file).read_text("utf-8")


def test_the_formula_compiles_nothing() -> None:
    assert "--only-binary=:all:" in FORMULA
    assert re.search(r'depends_on "python@3\.1[1-9]"', FORMULA)
    assert len(re.findall(r"\b(?:class|def|do|<<~EOS)\b", FORMULA)) >= 5
    assert FORMULA.count("\nend") + FORMULA.count("\n  end") == len(
        re.findall(r"^ *(?:class|def|\w+ do)\b", FORMULA, re.M)
    )
