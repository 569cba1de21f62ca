"""Downloads model files by their URLs. A download is resumed, and appears only when it is complete."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from paddock.errors import HubUnreachable, PullFailed
from paddock.fleet.catalogue.files import all_parts
from paddock.fleet.catalogue.hub import STAGING
from paddock.fleet.catalogue.verified import VerifiedFiles, digest_of, sync

_ATTEMPTS = 5
_TIMEOUT = 30.0
_LARGE = 10 << 20
"""Progress is reported if a tenth of the file has at least so many bytes."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class _Remote:
    """What the server says about a file; nothing if it does not answer HEAD."""

    tag: str = ""
    """Changes with the content. The hub's is the SHA-256."""
    size: int | None = None


def download(
    url: str, folder: Path, *, to: Path | None = None, headers: Mapping[str, str], say: Callable[[str], None]
) -> Path:
    """Download a model with all its parts, below `folder` or to the path `to`, and return its first file. `headers`
    are sent to the server of the URL only.

    A file that has not changed on the server is kept. Raises `PullFailed`, or `HubUnreachable` for network errors.
    """
    parts = _parts(url, folder, to)
    verified = VerifiedFiles(Path("/"), folder / STAGING)
    try:
        sent = {"Accept-Encoding": "identity", **headers}
        with httpx.Client(follow_redirects=True, timeout=_TIMEOUT, headers=sent) as client:
            for address, target in parts:
                _fetch(client, address, target, folder / STAGING, verified, say)
    except OSError as error:
        raise PullFailed(f"cannot write below {folder}: {error.strerror or error}") from None
    return parts[0][1]


def downloaded(url: str, folder: Path, *, to: Path | None = None) -> Path:
    """The same model, as it was downloaded before. Raises `PullFailed` if it was not."""
    parts = _parts(url, folder, to)
    for _, target in parts:
        if not target.is_file():
            raise PullFailed(f"{_shown(url)} has not been downloaded: {target} does not exist")
    return parts[0][1]


def _parts(url: str, folder: Path, to: Path | None) -> list[tuple[str, Path]]:
    """The address and the path of each file of the model."""
    split = urlsplit(url)
    name = PurePosixPath(unquote(split.path)).name
    if split.scheme not in ("http", "https") or not split.hostname or not name or name.startswith("."):
        raise PullFailed(f"{url!r} is not the URL of a file: use http(s)://HOST/PATH/FILE.gguf")
    names = all_parts(name) or [name]
    base = folder / split.hostname if to is None else to.parent
    start = split.path.rpartition("/")[0]
    found = []
    for part in names:
        path = split.path if part == name else f"{start}/{part}"
        target = to if to is not None and len(names) == 1 else base / part
        found.append((urlunsplit(split._replace(path=path, fragment="")), target.absolute()))
    return found


def _fetch(
    client: httpx.Client,
    url: str,
    target: Path,
    staging: Path,
    verified: VerifiedFiles,
    say: Callable[[str], None],
) -> None:
    remote = _ask(client, url)
    known, shown = verified[target], _shown(url)
    if known is not None and known.revision == shown and remote.tag in ("", known.digest):
        return
    staging.mkdir(parents=True, exist_ok=True)
    part = staging / f"{hashlib.sha256(f'{url} {remote.tag}'.encode()).hexdigest()}.part"
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullFailed(f"{shown} is being downloaded by another process") from None
        if not remote.tag:
            file.truncate(0)  # a part of another version cannot be told from one of this version
        present = file.tell()
        if remote.size is not None and (free := shutil.disk_usage(staging).free) < remote.size - present:
            raise PullFailed(f"{shown} needs {remote.size - present} more bytes, but {staging} has {free} free")
        say(f"{'resuming' if present else 'downloading'} {shown}")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                size = _receive(client, url, file, remote, say)
                break
            except httpx.HTTPError as error:
                if attempt == _ATTEMPTS or isinstance(error, httpx.HTTPStatusError):
                    raise _failure(url, error) from None
        file.flush()
        os.fsync(file.fileno())
    if size is not None and part.stat().st_size != size:
        raise PullFailed(f"{shown} is incomplete: it has {size} bytes, {part.stat().st_size} have arrived")
    if _SHA256.fullmatch(remote.tag) and (found := digest_of(part, is_sha256=True)) != remote.tag:
        part.unlink()
        raise PullFailed(f"{shown} is corrupt and was removed: its SHA-256 is {found}, not {remote.tag}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(part, target)
    sync(target.parent)
    verified.add(target, remote.tag, shown)


def _ask(client: httpx.Client, url: str) -> _Remote:
    try:
        answer = client.head(url)
    except httpx.HTTPError as error:
        raise _failure(url, error) from None
    if answer.is_error:
        return _Remote()
    # The hub describes the file in its redirect to the storage.
    linked = next((each.headers for each in answer.history if "x-linked-etag" in each.headers), answer.headers)
    tag = linked.get("x-linked-etag") or linked.get("etag") or ""
    size = linked.get("x-linked-size") or answer.headers.get("content-length") or ""
    return _Remote(tag.removeprefix("W/").strip('"'), int(size) if size.isdecimal() else None)


def _receive(client: httpx.Client, url: str, file: BinaryIO, remote: _Remote, say: Callable[[str], None]) -> int | None:
    """Append what is missing to the file. Returns the size of the whole file, if the server says it."""
    file.flush()
    present = os.fstat(file.fileno()).st_size
    if present and present == remote.size:
        return present
    with client.stream("GET", url, headers={"Range": f"bytes={present}-"} if present else {}) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            file.truncate(0)
            raise httpx.ReadError("the file on the server is shorter than the part that is here")
        answer.raise_for_status()
        if answer.status_code != httpx.codes.PARTIAL_CONTENT:
            file.truncate(0)
            present = 0
        start = present
        tenth = (remote.size or 0) // 10
        for chunk in answer.iter_raw():
            file.write(chunk)
            before, present = present, present + len(chunk)
            if tenth >= _LARGE and present // tenth > before // tenth:
                say(f"{_shown(url)}: {present // tenth * 10} %")
        length = answer.headers.get("content-length", "")
        return remote.size or (start + int(length) if length.isdecimal() else None)


def _failure(url: str, error: httpx.HTTPError) -> PullFailed:
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        return (HubUnreachable if status >= 500 else PullFailed)(f"{_shown(url)} answered {status}")
    return HubUnreachable(f"cannot reach {_shown(url)}: {str(error) or type(error).__name__}")


def _shown(url: str) -> str:
    """The URL without a query, which may hold a secret."""
    split = urlsplit(url)
    return urlunsplit((split.scheme, split.netloc.rpartition("@")[2], split.path, "", ""))
