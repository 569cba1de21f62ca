"""Runs `paddock lab` or another command as a process, and reads the folder of its report."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.lab.stand_in import KEY

FAKE = "{python} -m paddock serve -m fake: -np 2 --port {port}"


@contextmanager
def running(*args: str, group: Sequence[str] = ("lab",)) -> Iterator[subprocess.Popen[str]]:
    """The process gets SIGTERM at the end of the block, so that it ends its servers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "paddock", *group, *args],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "LAB_API_KEY": KEY},
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.terminate()


def run(*args: str, group: Sequence[str] = ("lab",)) -> tuple[int, str]:
    with running(*args, group=group) as process:
        output, _ = process.communicate(timeout=200)
    return process.returncode, output


def raw(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "raw.jsonl").read_text("utf-8").splitlines()]


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(folder: Path) -> str:
    """The text of the page. The page must have no references to other files, and no secrets."""
    html = (folder / "index.html").read_text("utf-8")
    reader = _Reader()
    reader.feed(html)
    assert reader.references and all(each.startswith("data:image/png;base64,") for each in reader.references)
    assert "script" not in reader.tags and "link" not in reader.tags
    assert "url(" not in html and "@import" not in html
    assert KEY not in html
    assert len(reader.references) == len(list(folder.glob("*.png")))
    return " ".join(re.sub(r"\s+", " ", " ".join(reader.words)).split())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)
