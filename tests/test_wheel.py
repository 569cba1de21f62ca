"""The wheel in an empty environment, without a compiler: one real answer and the page."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator, Set
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dist import build
from tests.server import chat_body, client_of, wait_for
from tests.tiers import full

ROOT = Path(__file__).parents[1]
_URL = re.compile(r"on (http://\S+)")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source package and the wheel."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@full
def test_both_packages_have_the_page_and_no_tests(built: tuple[Path, Path]) -> None:
    source, wheel = built
    names = zipfile.ZipFile(wheel).namelist()
    assert "paddock/page/index.html" in names and any(name.endswith(".js") for name in names)
    assert {name.split("/")[0] for name in names} == {"paddock", f"paddock_llm-{_version(wheel)}.dist-info"}
    assert source.stat().st_size < 5e6, "neither images nor an environment"


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


@full  # builds an environment and loads the demo model
def test_the_wheel_answers_in_an_empty_environment(built: tuple[Path, Path], tmp_path: Path, demo_model: Path) -> None:
    """`pip install` of the wheel, with exactly the packages that it requires, taken from this environment."""
    pytest.importorskip("pip", reason="this environment has no pip to install the wheel with")
    place = tmp_path / "environment"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", built[1]],
        check=True, timeout=120,
    )  # fmt: skip
    (packages,) = place.glob("lib/python*/site-packages")
    (installed,) = importlib.metadata.distributions(name="paddock-llm", path=[str(packages)])
    for path in _required_files(installed):
        _link_or_copy(path, packages / path.name)
    said = {name: os.environ[name] for name in ("LANG", "PADDOCK_LIBLLAMA", "LD_LIBRARY_PATH") if name in os.environ}
    # No compiler, no make: only the environment is on the path.
    environment = {"PATH": str(place / "bin"), "HOME": str(tmp_path), "PADDOCK_MODEL_MANAGER__N_THREADS": "1", **said}
    version = subprocess.run([place / "bin" / "paddock", "--version"], env=environment, capture_output=True, timeout=60)
    assert _version(built[1]) in version.stdout.decode()
    with _Serving([str(place / "bin" / "paddock"), "serve", "-m", str(demo_model), "--port", "0"], environment) as url:
        with client_of(url) as client:
            assert "<html" in client.get("/").text
            answer = client.post("/v1/chat/completions", json=chat_body("Say hello.", max_tokens=8, temperature=0))
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"].strip()


class _Serving:
    """The URL of a server that runs inside of the block."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._output: list[str] = []
        self._url = ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def __enter__(self) -> str:
        try:
            wait_for(lambda: self._url or self._process.poll() is not None, 120, "the server to listen")
            assert self._url, self._output
        except BaseException:
            self.__exit__()
            raise
        return self._url

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(100)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join(30)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._output.append(line.rstrip())
                if not self._url and (match := _URL.search(line)):
                    self._url = match[1]


def _required_files(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    """The files and folders in site-packages of all that a distribution requires, without its extras."""
    seen: set[str] = set()
    waiting = list(_requirements(distribution, frozenset()))
    while waiting:
        wanted = waiting.pop()
        if (key := canonicalize_name(wanted.name)) not in seen:
            seen.add(key)
            found = importlib.metadata.distribution(wanted.name)
            waiting += _requirements(found, wanted.extras)
            tops = {file.parts[0] for file in found.files or () if ".." not in file.parts}
            yield from (Path(str(found.locate_file(top))) for top in sorted(tops) if top != "__pycache__")


def _requirements(distribution: importlib.metadata.Distribution, extras: Set[str]) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _link_or_copy(source: Path, target: Path) -> None:
    """Hard links: the sandbox of a worker does not allow to read another environment through symbolic ones."""

    def one(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except FileExistsError:
            pass  # a file of two packages; it must not be written, since it is the same file as in this environment
        except OSError:
            shutil.copy2(source, target)  # another file system

    if source.is_dir():
        shutil.copytree(source, target, copy_function=one, dirs_exist_ok=True, symlinks=True)
    else:
        one(str(source), str(target))
