"""What the bytes of an answer depend on besides its request: the part of a receipt that tells of a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paddock import __version__
from paddock.fleet.catalogue.digests import FileDigests
from paddock.libraries import this_cpu
from paddock.receipts import AppliedAdapter, HashedFile, Identity, UsedCpu, UsedLibrary
from paddock.types import Adapters, FileStamp, ModelInfo


async def identity_of(info: ModelInfo, digests: FileDigests, *, fingerprint: str, adapters: Adapters) -> Identity:
    """Of a worker of this machine. Raises `ReceiptUnavailable` if its files are no longer those that it loaded."""

    async def file(stamp: FileStamp) -> dict[str, Any]:
        return {"name": Path(stamp.path).name, "size": stamp.size, "sha256": await digests.sha256(stamp)}

    cpu = this_cpu()
    return Identity(
        paddock=__version__,
        engine=info.engine,
        fingerprint=fingerprint,
        sampler_profile=info.sampler_profile,
        model=[HashedFile(**await file(stamp)) for stamp in info.files],
        adapters=[
            AppliedAdapter(**await file(info.adapter_files[number]), scale=scale)
            for number, scale in adapters
            if number < len(info.adapter_files)
        ],
        library=_library(info),
        cpu=UsedCpu(machine=cpu.machine, model=cpu.model),
        options=info.decisive,
    )


def _library(info: ModelInfo) -> UsedLibrary | None:
    if (library := info.library) is None:
        return None
    return UsedLibrary(
        version=library.version,
        commit=library.commit,
        build_id=library.build_id,
        compiler=library.compiler,
        features=list(library.features),
    )
