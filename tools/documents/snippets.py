"""Every code block of the README, the tutorials and the guides: how a test runs it, or why none does.

A comment directly before a block says more:
- `<!-- not run: REASON -->`: no test runs it;
- `<!-- run by tests/FILE.py -->`: a test of its own runs it;
- `<!-- server: FLAGS -->`: `paddock serve -m fake: FLAGS` answers it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from documents.markdown import ROOT, Block, blocks

RUN = ("console", "javascript", "json", "python", "sh")
"""Languages that the tests run. A block of `text` is output or a drawing."""
_NOT_RUN = re.compile(r"not run: \S.*", re.S)
_RUN_BY = re.compile(r"run by (tests/\S+\.py)")
_COMMANDS = ("curl", "make", "paddock")


def documents() -> list[Path]:
    folders = ("tutorials", "guides")
    return [ROOT / "README.md", *(path for name in folders for path in sorted((ROOT / "docs" / name).glob("*.md")))]


def runnable() -> list[Block]:
    """The blocks that tests/test_documents.py runs."""
    return [block for document in documents() for block in blocks(document) if _is_run_here(block)]


def server_flags(block: Block) -> tuple[str, ...]:
    """The flags of the server that answers a block."""
    kind, _, flags = block.marker.partition(":")
    return tuple(shlex.split(flags)) if kind == "server" else ()


def commands(block: Block) -> list[str]:
    """The commands of a block. In a `console` block they follow `$ `; what else it has is output."""
    code = block.code.replace("\\\n", " ")
    if block.language == "sh":
        return [code]
    return [line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")]


def problems() -> Iterator[str]:
    for document in documents():
        for block in blocks(document):
            if (problem := _problem(block)) is not None:
                yield f"{block.place}: {problem}"


def _is_run_here(block: Block) -> bool:
    marked = _NOT_RUN.fullmatch(block.marker) or _RUN_BY.fullmatch(block.marker)
    return block.language in RUN and not marked


def _problem(block: Block) -> str | None:
    if _NOT_RUN.fullmatch(block.marker) or block.language == "text":
        return None
    if match := _RUN_BY.fullmatch(block.marker):
        return None if (ROOT / match[1]).is_file() else f"there is no {match[1]}"
    if block.language not in RUN:
        return f"no test runs {block.language or 'a block without a language'}: mark it with `<!-- not run: … -->`"
    if block.language == "console":
        for command in commands(block):
            if command.split()[0] not in _COMMANDS:
                return f"no test runs `{command}`: mark the block with `<!-- not run: … -->`"
    return None
