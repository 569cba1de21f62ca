"""What a Markdown document contains: prose, links, anchors and code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[^\n]*)\n(?P<code>.*?)^ *(?P=fence)", re.M | re.S)
_COMMENT = re.compile(r"<!--\s*((?:(?!-->).)*?)\s*-->\s*\Z", re.S)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!\\)!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.M)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block. `marker` is the text of an HTML comment directly before it."""

    document: Path
    line: int
    language: str
    code: str
    marker: str

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def all_documents() -> list[Path]:
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def prose(document: Path) -> str:
    """The document without code blocks."""
    return _FENCE.sub("", document.read_text("utf-8"))


def code_spans(document: Path) -> list[str]:
    return _CODE.findall(prose(document))


def link_targets(text: str) -> list[str]:
    return _LINK.findall(_CODE.sub("", text))


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes from the headings."""
    found: list[str] = []
    for heading in _HEADING.findall(prose(document)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(anchor if anchor not in found else f"{anchor}-{found.count(anchor)}")
    return set(found)


def blocks(document: Path) -> list[Block]:
    text = document.read_text("utf-8")
    found = []
    for match in _FENCE.finditer(text):
        comment = _COMMENT.search(text[max(0, match.start() - 400) : match.start()])
        indent = len(match["indent"])
        code = "".join(line[indent:] if line[:indent].isspace() else line for line in match["code"].splitlines(True))
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(document, line, match["language"].strip(), code, comment[1] if comment else ""))
    return found
