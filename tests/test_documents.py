"""The links, file paths and snippets of the documents. `make check` runs the same checks and finds stale pages."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir
from pathlib import Path

import click
import pytest

from documents import links, snippets
from documents.markdown import ROOT, Block, all_documents, blocks, link_targets, prose
from paddock.cli import main
from paddock.config import load_settings
from tests.server import Server
from tests.tiers import full

DOCUMENTS = all_documents()
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

# ── links and paths ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_and_anchor_exists(document: Path) -> None:
    assert links.dead_links(document) == []


def test_every_source_file_and_class_that_a_document_names_exists() -> None:
    assert list(links.problems()) == []
    assert len(links.named_paths(ROOT / "docs/explanation/architecture.md")) > 80, "the pattern finds them"


def test_no_document_links_a_section_twice_at_its_top() -> None:
    for document in DOCUMENTS:
        top = prose(document).split("\n## ")[0]
        targets = [target for target in link_targets(top) if target.startswith("#")]
        assert len(targets) == len(set(targets)), f"{document.name}: {targets}"


def test_the_readme_has_at_most_200_lines() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 200


# ── snippets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _runnable(*languages: str) -> list[object]:
    found = [block for block in snippets.runnable() if block.language in languages]
    return [pytest.param(block, id=block.place) for block in found]


def test_every_snippet_is_run_or_says_why_not() -> None:
    assert list(snippets.problems()) == []


def test_blocks_are_found_with_their_markers(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("Words.\n\n<!-- not run: why -->\n```sh\nls\n```\n\n1. x\n\n   ```json\n   {}\n   ```\n")
    found = [(block.language, block.code, block.marker, block.line) for block in blocks(document)]
    assert found == [("sh", "ls\n", "not run: why", 4), ("json", "{}\n", "", 10)]


@pytest.fixture(scope="module")
def server_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Block], Server]]:
    """A server with the fake model and the flags of the block, started once."""
    running: dict[tuple[str, ...], Server] = {}
    with ExitStack() as stack:

        def server_for(block: Block) -> Server:
            flags = snippets.server_flags(block)
            if flags not in running:
                server = Server("-m", "fake:", *flags, cwd=tmp_path_factory.mktemp("server"))
                running[flags] = stack.enter_context(server)
            return running[flags]

        yield server_for


def _at(code: str, server: Server) -> str:
    """The code with the port of the server: 8080 may be in use on this machine."""
    return re.sub(r"(localhost|127\.0\.0\.1):8080", rf"\1:{server.url.rpartition(':')[2]}", code)


@full  # each imports a client library, which takes seconds
@pytest.mark.parametrize("block", _runnable("python", "javascript"))
def test_programs_run(server_for: Callable[[Block], Server], block: Block, tmp_path: Path) -> None:
    interpreter = sys.executable if block.language == "python" else shutil.which("node")
    if interpreter is None:
        pytest.skip("node is not installed")
    file = tmp_path / ("client.py" if block.language == "python" else "client.mjs")
    file.write_text(_at(block.code, server_for(block)))
    done = subprocess.run([interpreter, file], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 5


@pytest.mark.parametrize("block", _runnable("sh", "console"))
def test_commands_run(server_for: Callable[[Block], Server], block: Block, tmp_path: Path) -> None:
    """Curl is run, `paddock` is parsed, `make` has the target."""
    commands = snippets.commands(block)
    assert commands
    for command in commands:
        for line in re.split(r"\n(?=(?:curl|make|paddock) )", command.strip()):
            match line.split()[0]:
                case "curl":
                    _run_curl(_at(line, server_for(block)))
                case "make":
                    assert line.split()[1] in TARGETS, line
                case _:
                    with chdir(tmp_path):
                        _parse(shlex.split(line, comments=True))


def _run_curl(line: str) -> None:
    command = line.replace("curl", "curl --silent --show-error --fail-with-body", 1)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def _parse(words: list[str]) -> None:
    """Have click parse a command line of `paddock`, without running it. Creates the files that it names, empty."""
    for file in (word for word in words if word.endswith((".gguf", ".json", ".jsonl", ".toml"))):
        if not file.startswith(("/", "~")):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).touch()
    command: click.Command = main
    (name, *rest) = words
    assert name == "paddock", words
    while True:
        context = command.make_context(name, rest, resilient_parsing=False)
        if not isinstance(command, click.Group):
            return
        name_found, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert name_found is not None and found is not None
        name, command = name_found, found


@pytest.mark.parametrize("block", _runnable("json"))
def test_configurations_are_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(block.code)
    settings = load_settings(file=file, environ={}, dotenv=tmp_path / ".env")
    assert settings.model_fields_set, "it sets something"
