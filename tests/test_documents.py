"""The links, file paths and snippets of the documents. `make check` runs the same checks and finds stale pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from documents import links
from documents.markdown import ROOT, all_documents, blocks, link_targets, prose

DOCUMENTS = all_documents()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_and_anchor_exists(document: Path) -> None:
    assert links.dead_links(document) == []


def test_every_source_file_that_a_document_names_exists() -> None:
    assert [problem for problem in links.problems() if "there is no file" in problem] == []
    assert len(links.named_paths(ROOT / "docs/explanation/architecture.md")) > 80, "the pattern finds them"


def test_no_document_links_a_section_twice_at_its_top() -> None:
    for document in DOCUMENTS:
        top = prose(document).split("\n## ")[0]
        targets = [target for target in link_targets(top) if target.startswith("#")]
        assert len(targets) == len(set(targets)), f"{document.name}: {targets}"


def test_blocks_are_found_with_their_markers(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("Words.\n\n<!-- not run: why -->\n```sh\nls\n```\n\n1. x\n\n   ```json\n   {}\n   ```\n")
    found = [(block.language, block.code, block.marker, block.line) for block in blocks(document)]
    assert found == [("sh", "ls\n", "not run: why", 4), ("json", "{}\n", "", 10)]
