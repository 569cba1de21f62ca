"""Models from the Hugging Face hub: which files of a repository are wanted, and how they get here whole.

A download lies in a hidden folder, which no catalogue looks into, until every part of the model is there and checked.
What was begun is gone on with: huggingface_hub itself forgets half a file when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paddock.errors import HubUnreachable, PullFailed
from paddock.fleet.catalogue.files import SUFFIX, is_projector, without_part
from paddock.fleet.catalogue.verified import VerifiedFiles, digest_of, sync

STAGING = ".pull"
# In this order, where no quantisation is asked for: llama-server's first choice, then what is near it.
_USUAL = ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q6_K", "Q8_0")
_QUANTISATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))(?=$|[-./])", re.I
)

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Source:
    """`owner/name`, with `@REVISION` and `:QUANTISATION` where they matter."""

    repository: str
    quantisation: str | None = None
    revision: str | None = None
    """A commit, a branch or a tag; the newest of the main branch unless given."""

    @classmethod
    def parse(cls, text: str) -> Source:
        rest, _, quantisation = text.removeprefix("hf.co/").removeprefix("https://huggingface.co/").partition(":")
        repository, pinned, revision = rest.partition("@")
        named = re.fullmatch(r"[\w.-]+/[\w.-]+", repository) and ".." not in repository
        if not named or (pinned and not re.fullmatch(r"[\w][\w./-]{0,99}", revision)) or ".." in revision:
            raise PullFailed(f"{text!r} is no model of the hub: OWNER/NAME[@REVISION][:QUANTISATION] is wanted")
        return cls(repository, quantisation or None, revision or None)


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    name: str
    size: int
    digest: str
    """Of its content: SHA-256, or git's, for files that the hub stores in git."""
    is_sha256: bool


def default_folder() -> Path:
    """Where models go when no directory is configured."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddock" / "models"


def choose(names: Sequence[str], quantisation: str | None) -> list[str]:
    """The files of the one model that is meant, all parts of it. Raises `PullFailed` where there is none."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(SUFFIX) and not is_projector(name):
            models.setdefault(without_part(name), []).append(name)
    if not models:
        raise PullFailed("it holds no GGUF model")
    labels = {model: _label(model) for model in models}
    for wanted in _USUAL if quantisation is None else (quantisation.upper(),):
        for model, label in labels.items():
            if wanted in (label, label.removeprefix("UD-")):
                return models[model]
    if quantisation is None:
        return next(iter(models.values()))
    raise PullFailed(f"it holds no {quantisation}, but {', '.join(sorted(set(labels.values())))}")


def _label(model: str) -> str:
    """How a model is quantised, by its name; its name where that does not tell."""
    return next(reversed(_QUANTISATION.findall(model)), PurePosixPath(model).name).upper()


def pull(source: Source, folder: Path, *, token: str | None = None, say: Callable[[str], None]) -> Path:
    """Bring a model below the folder, as `owner/name/file`, and return its first file. What is there and has the digest
    that the hub tells stays as it is.

    Raises `PullFailed`, and `HubUnreachable` where only the network is to blame.
    """
    revision, files = _listed(source.repository, source.revision, token)
    try:
        chosen = choose(list(files), source.quantisation)
    except PullFailed as error:
        raise PullFailed(f"{source.repository}: {error.message}") from None
    target = folder / source.repository
    verified = VerifiedFiles(folder, folder / STAGING)
    try:
        missing = [files[name] for name in chosen if not _is_there(target / name, files[name], verified, say)]
        parts = [_staged(source.repository, revision, remote, folder / STAGING, token, say) for remote in missing]
        for remote, part in zip(missing, parts, strict=True):
            (target / remote.name).parent.mkdir(parents=True, exist_ok=True)
            part.replace(target / remote.name)
        for name in chosen if missing else ():
            for path in (folder / parent for parent in (target / name).relative_to(folder).parents):
                sync(path)  # or a crash of the machine might leave a part of the model
        say(f"{source.repository} is at revision {revision}")
        for name in chosen:
            verified.add(target / name, files[name].digest, revision)
    except OSError as error:
        raise PullFailed(f"cannot write below {folder}: {error.strerror or error}") from None
    return target / chosen[0]


def pulled(source: Source, folder: Path) -> Path:
    """The same model, as it was pulled before. Raises `PullFailed` where it was not."""
    target = folder / source.repository
    names = [path.relative_to(target).as_posix() for path in target.rglob(f"*{SUFFIX}")]
    chosen = choose(names, source.quantisation)
    if source.revision is not None:
        verified = VerifiedFiles(folder, folder / STAGING)
        for name in chosen:
            known = verified[target / name]
            if known is None or known.revision != source.revision:
                found = "an unknown revision" if known is None else f"revision {known.revision}"
                raise PullFailed(f"{source.repository}: {name} is of {found}, not {source.revision}")
    return target / chosen[0]


def _listed(repository: str, wanted: str | None, token: str | None) -> tuple[str, dict[str, _RemoteFile]]:
    """The commit that the files are of, and the files. All of them are fetched of that commit, whatever happens to the
    branch meanwhile.
    """
    from huggingface_hub import HfApi

    with _explained(repository):
        info = HfApi(token=token).model_info(repository, revision=wanted, files_metadata=True)
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit) or (wanted and _COMMIT.fullmatch(wanted) and commit != wanted):
        raise PullFailed(f"{repository}: the hub answered with the commit {commit!r} for {wanted or 'the newest'}")
    files = {}
    for file in info.siblings or ():
        sha256 = file.lfs.sha256 if file.lfs is not None else None
        path = PurePosixPath(file.rfilename)
        if ".." in path.parts or path.is_absolute() or any(part.startswith(".") for part in path.parts):
            continue  # nothing that would lie elsewhere, or where nobody looks
        if file.size is not None and re.fullmatch(r"[0-9a-f]{40,64}", digest := sha256 or file.blob_id or ""):
            files[file.rfilename] = _RemoteFile(file.rfilename, file.size, digest, sha256 is not None)
    return commit, files


def _is_there(path: Path, remote: _RemoteFile, verified: VerifiedFiles, say: Callable[[str], None]) -> bool:
    if not path.is_file() or path.stat().st_size != remote.size:
        return False
    known = verified[path]
    if known is not None:
        return known.digest == remote.digest
    say(f"checking {remote.name}, which is there already")
    if digest_of(path, is_sha256=remote.is_sha256) == remote.digest:
        return True
    say(f"{remote.name} is not what the hub has: pulling it again")
    return False


def _staged(
    repository: str, revision: str, remote: _RemoteFile, staging: Path, token: str | None, say: Callable[[str], None]
) -> Path:
    """The whole file, checked, in a place where nobody looks for models."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, but not marked so

    staging.mkdir(parents=True, exist_ok=True)
    part = staging / f"{remote.digest}.part"
    with part.open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullFailed(f"{remote.name} of {repository} is being pulled by another process") from None
        if file.tell() > remote.size:
            file.truncate(0)  # it can only be nonsense
        present = file.seek(0, os.SEEK_END)
        if (free := shutil.disk_usage(staging).free) < remote.size - present:
            raise PullFailed(f"{remote.name} takes {remote.size - present} bytes more, and {staging} has {free} left")
        say(f"{'going on with' if present else 'pulling'} {remote.name} of {repository}")
        with _explained(repository):
            http_get(
                hf_hub_url(repository, remote.name, revision=revision, endpoint=constants.ENDPOINT),
                file,
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
            raise PullFailed(f"{remote.name} came damaged and was removed: its {kind} is {found}, not {remote.digest}")
    return part


@contextmanager
def _explained(repository: str) -> Iterator[None]:
    """What goes wrong between here and the hub, in one line."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    hub = constants.ENDPOINT
    try:
        yield
    except GatedRepoError:
        raise PullFailed(
            f"{repository} is gated: accept its terms at {hub}/{repository}, then give a token (--token, HF_TOKEN)"
        ) from None
    except RepositoryNotFoundError:
        raise PullFailed(
            f"there is no repository {repository} at {hub}, or it is private and wants a token (--token, HF_TOKEN)"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise (HubUnreachable if status >= 500 else PullFailed)(f"{hub} answered {status} for {repository}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise  # a full disk, say
        # The library lets the errors of its HTTP client through, and has changed that client twice.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HubUnreachable(f"cannot reach {hub}: {reason}") from None
