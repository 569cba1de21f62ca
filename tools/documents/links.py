"""Links and file paths in the documents lead to something that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from documents.markdown import ROOT, all_documents, anchors, code_spans, link_targets, prose

# The documents that name files of the source tree. The notebook is dated: it names files as they were.
_NAMES_FILES = ("docs/explanation", "docs/guides", "docs/tutorials", "CONTRIBUTING.md", "SECURITY.md", "README.md")
_NAMES_CODE = ("docs/explanation",)
_FOLDERS = ("src", "lab/src", "web/src", "tests", "tools", "docs", "deploy", "scenarios")
_IGNORED = {"node_modules", "__pycache__", ".venv", ".git"}
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:\.\w+|/)")
_CLASS = re.compile(r"[A-Z][a-z]+\w*(?:\.\w+)?")
_BUILT = {"dist/"}
_SUFFIXES = (".py", ".ts", ".tsx", ".toml", ".jinja")


def problems() -> Iterator[str]:
    for document in all_documents():
        name = document.relative_to(ROOT)
        if re.search(r"^(<{7}|>{7}) ", document.read_text("utf-8"), re.M):
            yield f"{name}: a merge conflict is not resolved"
        for target in dead_links(document):
            yield f"{name}: the link {target} leads nowhere"
        if str(name).startswith(_NAMES_FILES):
            for path in missing_paths(document):
                yield f"{name}: there is no file {path}"
        if str(name).startswith(_NAMES_CODE):
            for identifier in missing_names(document):
                yield f"{name}: the code has no name {identifier}"


def dead_links(document: Path) -> list[str]:
    """Relative links to a file or an anchor that does not exist."""
    dead = []
    for target in link_targets(prose(document)):
        if re.match(r"[a-z]+:", target):
            continue  # on another site
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and (file.suffix != ".md" or anchor not in anchors(file))):
            dead.append(target)
    return dead


def missing_paths(document: Path) -> list[str]:
    """Source files and folders that the document names and that do not exist."""
    known = _known_paths() | _BUILT
    return sorted(name for name in named_paths(document) if not any(f"/{each}".endswith(f"/{name}") for each in known))


def named_paths(document: Path) -> set[str]:
    """`fleet/process.py`, `scheduling/` or, with a name in it, `errors.py: PaddockError`."""
    names = {code.split(":")[0].strip() for code in code_spans(document)}
    return {name for name in names if _PATH.fullmatch(name) and name.endswith((*_SUFFIXES, "/"))}


def missing_names(document: Path) -> list[str]:
    """Classes, and attributes of classes, that the document names and that the code does not have."""
    named = {code for code in code_spans(document) if _CLASS.fullmatch(code)}
    return sorted(name for name in named if not _words().issuperset(name.split(".")))


@cache
def _words() -> frozenset[str]:
    """Every word of the Python code."""
    files = [path for folder in ("src", "lab/src") for path in (ROOT / folder).rglob("*.py")]
    return frozenset(word for path in files for word in re.findall(r"\w+", path.read_text("utf-8")))


def _known_paths() -> set[str]:
    files = [
        path.relative_to(ROOT)
        for folder in _FOLDERS
        if (ROOT / folder).is_dir()
        for path in (ROOT / folder).rglob("*")
        if not _IGNORED.intersection(path.parts)
    ]
    return {str(path) for path in files} | {f"{parent}/" for path in files for parent in path.parents}
