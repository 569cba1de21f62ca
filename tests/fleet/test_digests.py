from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from paddock.errors import ReceiptUnavailable
from paddock.fleet.catalogue import digests
from paddock.fleet.catalogue.digests import FileDigests, stamp_of
from paddock.types import FileStamp


def _digests(folder: Path) -> FileDigests:
    return FileDigests({"XDG_CACHE_HOME": str(folder / "cache")})


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.gguf"
    read: list[FileStamp] = []
    file.write_bytes(b"weights" * 1000)
    real = digests.sha256_of

    def counting(stamp: FileStamp) -> str:
        read.append(stamp)
        return real(stamp)

    monkeypatch.setattr(digests, "sha256_of", counting)

    async def ask(times: int) -> set[str]:
        known = _digests(tmp_path)
        known.start([str(file), str(tmp_path / "missing")])
        return set(await asyncio.gather(*(known.sha256(stamp_of(file)) for _ in range(times))))

    expected = {hashlib.sha256(b"weights" * 1000).hexdigest()}
    assert asyncio.run(ask(20)) == expected
    assert asyncio.run(ask(2)) == expected, "by another server"
    assert len(read) == 1
    assert list(json.loads((tmp_path / "cache/paddock/model-digests.json").read_text())) == [str(file)]
    file.write_bytes(b"others!" * 1000)
    assert asyncio.run(ask(1)) == {hashlib.sha256(b"others!" * 1000).hexdigest()}


def test_a_file_that_is_not_the_loaded_one(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"weights")
    loaded = stamp_of(file)
    (tmp_path / "b.gguf").write_bytes(b"weights")
    (tmp_path / "b.gguf").replace(file)

    async def ask() -> str:
        return await _digests(tmp_path).sha256(loaded)

    with pytest.raises(ReceiptUnavailable, match=r"a\.gguf was changed after it was loaded"):
        asyncio.run(ask())
    file.unlink()
    with pytest.raises(ReceiptUnavailable, match=r"cannot read a\.gguf"):
        asyncio.run(ask())
