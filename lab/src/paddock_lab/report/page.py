"""The web page of a run: one file without scripts or references."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from paddock_lab.report.findings import Findings, shown


@dataclass(frozen=True)
class About:
    """The run, without its results."""

    title: str
    question: str
    begun: str
    command: str
    facts: Mapping[str, Mapping[str, str]]
    """Servers, flags, the machine and versions, by their headings."""
    partial: bool


def render(about: About, findings: Findings, pictures: Sequence[tuple[str, Path]]) -> str:
    """The page with embedded pictures, which are given by title and file."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["shown"] = shown
    images = [(title, base64.b64encode(path.read_bytes()).decode()) for title, path in pictures]
    return environment.get_template("page.html.jinja").render(about=about, findings=findings, images=images)
