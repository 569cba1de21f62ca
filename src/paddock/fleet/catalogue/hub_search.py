"""Finds models on the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from paddock.fleet.catalogue.files import is_projector
from paddock.fleet.catalogue.hub import hub_errors, label_of, models_among, repository_files

_PATIENCE = 10.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class HubRepository:
    name: str
    """`owner/name`."""
    downloads: int
    likes: int
    updated: datetime | None
    is_gated: bool
    """It requires a token of somebody who has accepted its terms."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """One model of a repository: a quantisation, in one file or in parts."""

    quantisation: str
    files: list[str]
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class HubContents:
    revision: str
    models: list[HubModel]
    """The smallest first."""
    projectors: list[str]


class _Found(msgspec.Struct, rename="camel"):
    id: str
    downloads: int = 0
    likes: int = 0
    last_modified: datetime | None = None
    gated: bool | str = False


def search_hub(text: str, *, most: int, token: str | None = None) -> list[HubRepository]:
    """Repositories with GGUF models, those with the most downloads first. Raises `PullFailed` or `HubUnreachable`."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

    # HfApi's own search tries again for half a minute, while somebody waits.
    asked: dict[str, str | int] = {
        "search": text,
        "filter": "gguf",
        "sort": "downloads",
        "direction": -1,
        "limit": most,
        "full": True,
    }
    with hub_errors("a search"):
        response = get_session().get(
            f"{constants.ENDPOINT}/api/models", params=asked, headers=build_hf_headers(token=token), timeout=_PATIENCE
        )
        hf_raise_for_status(response)
        found = msgspec.json.decode(response.content, type=list[_Found])
    return [HubRepository(one.id, one.downloads, one.likes, one.last_modified, bool(one.gated)) for one in found]


def hub_contents(repository: str, *, token: str | None = None) -> HubContents:
    """The models of a repository. Raises `PullFailed` or `HubUnreachable`."""
    revision, files = repository_files(repository, None, token)
    models = [
        HubModel(label_of(name), parts, sum(files[part].size for part in parts))
        for name, parts in models_among(files).items()
    ]
    return HubContents(revision, sorted(models, key=lambda model: model.size), sorted(filter(is_projector, files)))
