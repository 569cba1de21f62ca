"""What the documents name exists: modules of the architecture, and the targets of links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!\\)!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_PATH = re.compile(r"[\w./-]+(?:\.\w+|/)")
_SUFFIXES = (".py", ".ts", ".tsx", ".md", ".toml", ".jinja", "/")
_IGNORED = ("node_modules", "__pycache__", ".venv", ".git")


def _prose(document: Path) -> str:
    """Without blocks of code, in which nothing is a link."""
    return _FENCE.sub("", document.read_text("utf-8"))


def _anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    found: list[str] = []
    for heading in _HEADING.findall(_prose(document)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(anchor if anchor not in found else f"{anchor}-{found.count(anchor)}")
    return set(found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_and_anchor_leads_somewhere(document: Path) -> None:
    dead = []
    for target in _LINK.findall(_CODE.sub("", _prose(document))):
        if re.match(r"[a-z]+:", target):
            continue  # elsewhere
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and (file.suffix != ".md" or anchor not in _anchors(file))):
            dead.append(target)
    assert not dead, f"{document.name} links to {dead}"


def test_every_module_that_the_architecture_names_exists() -> None:
    files = [
        path.relative_to(ROOT)
        for folder in ("src", "lab/src", "web/src", "tests", "tools", "docs", "deploy", "scenarios")
        for path in (ROOT / folder).rglob("*")
        if not any(part in _IGNORED for part in path.parts)
    ]
    folders = {f"{parent}/" for path in files for parent in path.parents}
    known = {str(path) for path in files} | folders
    named = {
        name
        for code in _CODE.findall(_prose(ROOT / "docs" / "architecture.md"))
        for name in [code.split(":")[0].strip()]
        if _PATH.fullmatch(name) and name.endswith(_SUFFIXES)
    }
    assert len(named) > 80, "the pattern finds them"
    missing = sorted(name for name in named if not any(each == name or each.endswith(f"/{name}") for each in known))
    assert not missing, f"docs/architecture.md names {missing}"


def test_no_document_lists_a_section_twice() -> None:
    """In the row of links at the top of a long document."""
    for document in DOCUMENTS:
        top = _prose(document).split("\n## ")[0]
        targets = [target for target in _LINK.findall(top) if target.startswith("#")]
        assert len(targets) == len(set(targets)), f"{document.name}: {targets}"
