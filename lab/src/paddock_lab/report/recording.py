"""The folder of a run: observations, table, charts and page."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from paddock_lab.report.findings import Findings
from paddock_lab.report.machine import machine, versions
from paddock_lab.report.page import About, render
from paddock_lab.report.pictures import write

_SECRET = re.compile(r"(--(?:api|other)-key[= ]+)([^\s'\"]+)")


def new_folder(out: Path | None, experiment: str) -> Path:
    """The requested folder, which must be empty, or one named by experiment and time."""
    folder = out or Path("lab-results") / f"{experiment}-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.UsageError(f"{folder} exists and is not an empty folder: choose another one with --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Recording:
    """Writes each observation at once, so that an interrupted run loses nothing, and the report at the end."""

    def __init__(self, folder: Path, title: str, question: str) -> None:
        self.folder = folder
        self._title, self._question = title, question
        self._begun = datetime.now().astimezone()

    def __enter__(self) -> Recording:
        self._raw = (self.folder / "raw.jsonl").open("w", encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._raw.close()

    def add(self, observation: Mapping[str, Any]) -> None:
        self._raw.write(json.dumps(observation, ensure_ascii=False) + "\n")
        self._raw.flush()

    def finish(
        self, findings: Findings, *, partial: bool, servers: Mapping[str, str], flags: Mapping[str, object]
    ) -> Path:
        """Write table, charts and page. Returns the path of the page."""
        for table in findings.tables[:1]:
            with (self.folder / "summary.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(table.spread())
        pictures = [(picture.title, write(picture, self.folder)) for picture in findings.pictures]
        about = About(
            title=self._title,
            question=self._question,
            begun=f"{self._begun:%Y-%m-%d %H:%M:%S %Z}",
            command=without_secrets(f"paddock {shlex.join(sys.argv[1:])}"),
            facts={
                "Servers": {name: without_secrets(what) for name, what in servers.items()},
                "Flags": {name: _flag(name, value) for name, value in flags.items()},
                "Machine": machine(),
                "Versions": versions(),
            },
            partial=partial,
        )
        page = self.folder / "index.html"
        page.write_text(render(about, findings, pictures), "utf-8")
        return page


def without_secrets(text: str) -> str:
    return _SECRET.sub(r"\1***", text)


def _flag(name: str, value: object) -> str:
    if name in ("api_key", "other_key") and value:
        return "***"
    if isinstance(value, tuple):
        return without_secrets(" · ".join(map(str, value)) or "-")
    return "-" if value is None else without_secrets(str(value))
