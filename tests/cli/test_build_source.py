"""What a build fetches with pip, from an index that is a folder."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from paddock.cli.native.source import download
from paddock.cli.native.tools import Runner, Tools, install_tools
from paddock.errors import StartupError
from paddock.libraries import Source

# pip asks a source package for its metadata, which runs its code. This one says that it ran.
_BACKEND = """
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    Path({ran!r}).touch()
    place = Path(folder) / "package-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: package\\nVersion: 1.0\\n")
    (place / "WHEEL").write_text("Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    return place.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    raise NotImplementedError
"""
_PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip may use."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return folder


def _source(index: Path, ran: Path) -> Source:
    path = index / "package-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (
            ("PKG-INFO", "Metadata-Version: 2.1\nName: package\nVersion: 1.0\n"),
            ("pyproject.toml", _PROJECT),
            ("backend.py", _BACKEND.format(ran=str(ran))),
        ):
            member = tarfile.TarInfo(f"package-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return Source("package", "1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def _wheel(index: Path, name: str) -> None:
    """A package with one program."""
    files = {
        f"{name}-3.99.data/scripts/{name}": "#!/bin/sh\necho here\n",
        f"{name}-3.99.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.99\n",
        f"{name}-3.99.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}\n"
        for path, text in files.items()
    )
    with zipfile.ZipFile(index / f"{name}-3.99-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
        archive.writestr(f"{name}-3.99.dist-info/RECORD", f"{record}{name}-3.99.dist-info/RECORD,,\n")


def _runner() -> Runner:
    return Runner(io.StringIO())


def test_the_source_comes_from_the_index_of_pip(index: Path, tmp_path: Path) -> None:
    source = _source(index, tmp_path / "ran")
    work = tmp_path / "work"
    work.mkdir()
    found = download(source, work, _runner())
    assert found.parent == work and hashlib.sha256(found.read_bytes()).hexdigest() == source.sha256


def test_no_code_of_a_package_with_another_hash_runs(index: Path, tmp_path: Path) -> None:
    _source(index, tmp_path / "ran")
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(StartupError, match=r"cannot download the source of package 1\.0 from the Python index: .*HASH"):
        download(Source("package", "1.0", "0" * 64), work, _runner())
    assert not (tmp_path / "ran").exists()


def test_without_an_index_the_file_can_be_given(index: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"[Nn]o matching|Could not find") as raised:
        download(Source("package", "2.0", "0" * 64), tmp_path, _runner())
    assert "--source FILE" in raised.value.message


def test_cmake_comes_from_the_index_if_it_is_missing(index: Path, tmp_path: Path) -> None:
    _wheel(index, "cmake")
    tools = install_tools(Tools(None, "/bin/true", "c++"), tmp_path, _runner())
    assert tools.cmake is not None and Path(tools.cmake).parent == tmp_path / "tools" / "bin"
    assert tools.ninja == "/bin/true", "it is there"
    assert _runner()([tools.cmake]) == 0


def test_tools_that_cannot_be_installed_are_named(index: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cmake and ninja cannot be installed from the Python index"):
        install_tools(Tools(None, None, "c++"), tmp_path, _runner())


def test_the_reason_of_cmake_is_told_and_not_what_came_before() -> None:
    run = Runner(io.StringIO())
    said = "fatal: not a git repository\n-- Found Git\nCMake Error at CMakeLists.txt:7 (add):\n  no such folder\n\n"
    assert run(["/bin/sh", "-c", f"printf '{said}'; exit 1"]) == 1
    assert run.last_error() == "CMake Error at CMakeLists.txt:7 (add): no such folder"
