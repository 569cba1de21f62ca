"""Downloads models from the Hugging Face hub.

A download stays in a hidden staging folder, which catalogues skip, until every part is complete and verified. An
interrupted download is resumed; huggingface_hub itself does not resume after the process has ended.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from paddock.config import nearest
from paddock.errors import HubUnreachable, PullFailed
from paddock.fleet.catalogue import hub_cache
from paddock.fleet.catalogue.files import SUFFIX, is_projector, without_part
from paddock.fleet.catalogue.verified import VerifiedFiles, digest_of, sync

STAGING = ".pull"
# Preferred quantisations, best first, if none is requested. llama-server prefers the same first.
_USUAL = ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q6_K", "Q8_0")
_QUANTISATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))(?=$|[-./])", re.I
)

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Transfer:
    """How much of a file has been downloaded."""

    url: str
    digest: str
    done: int
    """Bytes."""
    total: int


Progress = Callable[[Transfer], None]
"""Called while files are downloaded. It may raise `PullCancelled`; the next pull continues the download."""


class PullCancelled(Exception):
    """The download is not wanted any more."""


@dataclass(frozen=True, slots=True)
class Source:
    """`owner/name`, optionally with `@REVISION` and `:QUANTISATION`, or with the name of a file."""

    repository: str
    quantisation: str | None = None
    revision: str | None = None
    """A commit, branch or tag; None for the newest commit of the main branch."""
    file: str | None = None
    """A file of the repository; it counts instead of the quantisation."""

    @classmethod
    def parse(cls, text: str, file: str | None = None) -> Source:
        rest, _, quantisation = text.removeprefix("hf.co/").removeprefix("https://huggingface.co/").partition(":")
        repository, pinned, revision = rest.partition("@")
        named = re.fullmatch(r"[\w.-]+/[\w.-]+", repository) and ".." not in repository
        if not named or (pinned and not re.fullmatch(r"[\w][\w./-]{0,99}", revision)) or ".." in revision:
            raise PullFailed(f"{text!r} is not a model on the hub: use OWNER/NAME[@REVISION][:QUANTISATION]")
        return cls(repository, quantisation or None, revision or None, file)

    def __str__(self) -> str:
        revision, quantisation = self.revision, self.quantisation
        return self.repository + (f"@{revision}" if revision else "") + (f":{quantisation}" if quantisation else "")

    def choose(self, names: Sequence[str]) -> list[str]:
        """All files of the model, out of the names of all files. Raises `PullFailed` if there is none."""
        try:
            return choose(names, self.quantisation) if self.file is None else _with_file(names, self.file)
        except PullFailed as error:
            raise PullFailed(f"{self.repository}: {error.message}") from None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str
    size: int
    digest: str
    """SHA-256, or the git blob id of files that the hub stores in git."""
    is_sha256: bool


def default_folder() -> Path:
    """The download folder if no models directory is configured: in llama-server's (LLAMA_CACHE) or the user's cache."""
    if cache := os.environ.get("LLAMA_CACHE"):
        return Path(cache).expanduser() / "paddock"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddock" / "models"


def verified_files(folder: Path) -> VerifiedFiles:
    """What was pulled into this folder."""
    return VerifiedFiles(folder, folder / STAGING)


def models_among(names: Iterable[str]) -> dict[str, list[str]]:
    """The files of each model of a repository, by its name without the numbers of parts."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(SUFFIX) and not is_projector(name):
            models.setdefault(without_part(name), []).append(name)
    return models


def choose(names: Sequence[str], quantisation: str | None) -> list[str]:
    """All files of the requested model. Raises `PullFailed` if there is none."""
    models = models_among(names)
    if not models:
        raise PullFailed("it has no GGUF model")
    labels = {model: label_of(model) for model in models}
    for wanted in _USUAL if quantisation is None else (quantisation.upper(),):
        for model, label in labels.items():
            if wanted in (label, label.removeprefix("UD-")):
                return models[model]
    if quantisation is None:
        return next(iter(models.values()))
    raise PullFailed(f"it has no {quantisation}; it has {', '.join(sorted(set(labels.values())))}")


def _with_file(names: Sequence[str], file: str) -> list[str]:
    if file not in names:
        models = [name for name in names if name.endswith(SUFFIX)]
        raise PullFailed(f"it has no file {file!r}{nearest(file, models)}")
    return sorted(name for name in names if without_part(name) == without_part(file))


def quantisations(folder: Path) -> list[str]:
    """The pulled models, as `OWNER/NAME:QUANTISATION`."""
    found = {
        f"{path.relative_to(folder).parts[0]}/{path.relative_to(folder).parts[1]}:{label_of(without_part(path.name))}"
        for path in folder.glob(f"*/*/**/*{SUFFIX}")
        if not is_projector(path.name) and not path.relative_to(folder).parts[0].startswith(".")
    }
    return sorted(found)


def label_of(model: str) -> str:
    """The quantisation in a model's name, or the name itself."""
    return next(reversed(_QUANTISATION.findall(model)), PurePosixPath(model).name).upper()


def pull(
    source: Source,
    folder: Path,
    *,
    token: str | None = None,
    say: Callable[[str], None],
    progress: Progress = lambda transfer: None,
) -> Path:
    """Download a model to `folder/owner/name/` and return its first file. Files that match the hub's digest are kept.

    Raises `PullFailed`, or `HubUnreachable` for network errors.
    """
    revision, files = repository_files(source.repository, source.revision, token)
    chosen = source.choose(list(files))
    target = folder / source.repository
    verified = verified_files(folder)
    try:
        missing = [files[name] for name in chosen if not _is_there(target / name, files[name], verified, say)]
        parts = [
            _staged(source.repository, revision, remote, folder / STAGING, token, say, progress) for remote in missing
        ]
        for remote, part in zip(missing, parts, strict=True):
            (target / remote.name).parent.mkdir(parents=True, exist_ok=True)
            part.replace(target / remote.name)
        for name in chosen if missing else ():
            for path in (folder / parent for parent in (target / name).relative_to(folder).parents):
                sync(path)  # so that a power failure leaves no partial model
        say(f"{source.repository} is at revision {revision}")
        for name in chosen:
            verified.add(target / name, files[name].digest, revision)
    except OSError as error:
        raise PullFailed(f"cannot write below {folder}: {error.strerror or error}") from None
    return target / chosen[0]


def pulled(source: Source, folder: Path) -> Path:
    """The same model, as it was pulled before. Raises `PullFailed` where it was not."""
    target = folder / source.repository
    try:
        chosen = source.choose(_names_below(target))
    except PullFailed:
        cached = hub_cache.snapshot(source.repository, source.revision)
        if cached is None:
            raise
        return cached / source.choose(_names_below(cached))[0]
    if source.revision is not None:
        verified = verified_files(folder)
        for name in chosen:
            known = verified[target / name]
            if known is None or known.revision != source.revision:
                found = "an unknown revision" if known is None else f"revision {known.revision}"
                raise PullFailed(f"{source.repository}: {name} is from {found}, not {source.revision}")
    return target / chosen[0]


def _names_below(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob(f"*{SUFFIX}")]


def repository_files(repository: str, wanted: str | None, token: str | None) -> tuple[str, dict[str, RemoteFile]]:
    """The commit and its files. All files are fetched from that commit, even if the branch moves meanwhile."""
    from huggingface_hub import HfApi

    with hub_errors(repository):
        info = HfApi(token=token).model_info(repository, revision=wanted, files_metadata=True)
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit) or (wanted and _COMMIT.fullmatch(wanted) and commit != wanted):
        raise PullFailed(f"{repository}: the hub returned commit {commit!r} for {wanted or 'the newest commit'}")
    files = {}
    for file in info.siblings or ():
        sha256 = file.lfs.sha256 if file.lfs is not None else None
        path = PurePosixPath(file.rfilename)
        if ".." in path.parts or path.is_absolute() or any(part.startswith(".") for part in path.parts):
            continue  # outside the folder, or hidden
        if file.size is not None and re.fullmatch(r"[0-9a-f]{40,64}", digest := sha256 or file.blob_id or ""):
            files[file.rfilename] = RemoteFile(file.rfilename, file.size, digest, sha256 is not None)
    return commit, files


def _is_there(path: Path, remote: RemoteFile, verified: VerifiedFiles, say: Callable[[str], None]) -> bool:
    if not path.is_file() or path.stat().st_size != remote.size:
        return False
    known = verified[path]
    if known is not None:
        return known.digest == remote.digest
    say(f"verifying {remote.name}, which exists already")
    if digest_of(path, is_sha256=remote.is_sha256) == remote.digest:
        return True
    say(f"{remote.name} differs from the hub: pulling it again")
    return False


class _Watched:
    """A file whose writes are reported."""

    def __init__(self, file: Any, written: Callable[[int], None]) -> None:
        self._file, self._written = file, written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        written: int = self._file.write(data)
        self._written(self._file.tell())
        return written


def _staged(
    repository: str,
    revision: str,
    remote: RemoteFile,
    staging: Path,
    token: str | None,
    say: Callable[[str], None],
    progress: Progress,
) -> Path:
    """Download the file to the staging folder and verify it."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, but not marked so

    staging.mkdir(parents=True, exist_ok=True)
    part = staging / f"{remote.digest}.part"
    if _is_linked_from_cache(repository, revision, remote, part, say):
        return part
    with part.open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullFailed(f"{remote.name} of {repository} is being pulled by another process") from None
        if file.tell() > remote.size:
            file.truncate(0)  # larger than the file: corrupt
        present = file.seek(0, os.SEEK_END)
        if (free := shutil.disk_usage(staging).free) < remote.size - present:
            raise PullFailed(f"{remote.name} needs {remote.size - present} more bytes, but {staging} has {free} free")
        say(f"{'resuming' if present else 'pulling'} {remote.name} of {repository}")
        url = hf_hub_url(repository, remote.name, revision=revision, endpoint=constants.ENDPOINT)

        def report(done: int) -> None:
            progress(Transfer(url, remote.digest, done, remote.size))

        report(present)
        with hub_errors(repository):
            http_get(
                url,
                _Watched(file, report),  # type: ignore[arg-type]  # what http_get uses of a file
                resume_size=present,
                headers=build_hf_headers(token=token),
                expected_size=remote.size,
                displayed_filename=PurePosixPath(remote.name).name,
            )
        file.flush()
        os.fsync(file.fileno())
        if (found := digest_of(part, is_sha256=remote.is_sha256)) != remote.digest:
            part.unlink()
            kind = "SHA-256" if remote.is_sha256 else "git digest"
            raise PullFailed(f"{remote.name} is corrupt and was removed: its {kind} is {found}, not {remote.digest}")
    return part


def _is_linked_from_cache(
    repository: str, revision: str, remote: RemoteFile, part: Path, say: Callable[[str], None]
) -> bool:
    """Link the file if the hub's own cache has it."""
    found = hub_cache.cached_file(repository, revision, remote.name)
    if found is None or found.stat().st_size != remote.size:
        return False
    say(f"verifying {remote.name}, which is in the hub's cache: {found}")
    if digest_of(found, is_sha256=remote.is_sha256) != remote.digest:
        return False
    hub_cache.link(found, part)
    return True


@contextmanager
def hub_errors(repository: str) -> Iterator[None]:
    """Translate huggingface_hub's errors to one-line errors of our own."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    hub = constants.ENDPOINT
    try:
        yield
    except PullCancelled:
        raise
    except HFValidationError as error:
        raise PullFailed(f"{repository!r} is not a model on the hub: {error}") from None
    except GatedRepoError:
        raise PullFailed(
            f"{repository} is gated: accept its terms at {hub}/{repository}, then pass a token (--token, HF_TOKEN)"
        ) from None
    except RepositoryNotFoundError:
        raise PullFailed(
            f"no repository {repository} at {hub}, or it is private and needs a token (--token, HF_TOKEN)"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise (HubUnreachable if status >= 500 else PullFailed)(f"{hub} answered {status} for {repository}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise  # not a network error, such as a full disk
        # The library lets errors of its HTTP client through, and it has changed that client twice.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HubUnreachable(f"cannot reach {hub}: {reason}") from None
