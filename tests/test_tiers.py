from __future__ import annotations

from pathlib import Path

from tests.tiers import LONGEST


def test_the_longest_files_exist() -> None:
    assert [name for name in LONGEST if not (Path(__file__).parent / name).is_file()] == []
