"""Downloads by URL, from a server on loopback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.errors import HubUnreachable, PullFailed
from paddock.fleet.catalogue.urls import download, downloaded
from tests.hub import Hub, Repository

_LARGE = os.urandom(1 << 20) * 4


def _url(hub: Hub, file: str) -> str:
    return f"{hub.url}/house/m/resolve/main/{file}?download=true"


def _download(hub: Hub, folder: Path, file: str = "m.gguf", to: Path | None = None) -> Path:
    return download(_url(hub, file), folder, to=to, headers={}, say=lambda line: None)


def test_a_file_is_downloaded_once(tmp_path: Path) -> None:
    repository = Repository({"m.gguf": _LARGE})
    with Hub(house__m=repository) as hub:
        path = _download(hub, tmp_path)
        assert path == tmp_path / "127.0.0.1" / "m.gguf"
        assert path.read_bytes() == _LARGE
        assert _download(hub, tmp_path) == path
        assert repository.asked == [("m.gguf", "")]
        repository.files["m.gguf"] = b"GGUF new"
        assert _download(hub, tmp_path).read_bytes() == b"GGUF new", "it has changed on the server"
    assert downloaded(_url(hub, "m.gguf"), tmp_path) == path
    with pytest.raises(HubUnreachable, match=r"cannot reach http://127\.0\.0\.1:"):
        _download(hub, tmp_path)
    with pytest.raises(PullFailed, match=r"other\.gguf has not been downloaded"):
        downloaded(_url(hub, "other.gguf"), tmp_path)


def test_a_path_can_be_given(tmp_path: Path) -> None:
    with Hub(house__m=Repository({"m.gguf": b"GGUF"})) as hub:
        assert _download(hub, tmp_path, to=tmp_path / "own" / "name.gguf") == tmp_path / "own" / "name.gguf"


def test_all_parts_of_a_split_model_are_downloaded(tmp_path: Path) -> None:
    names = [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    repository = Repository({name: name.encode() for name in names})
    with Hub(house__m=repository) as hub:
        path = _download(hub, tmp_path, names[1])
    assert path.name == names[0]
    assert [path.with_name(name).read_bytes() for name in names] == [name.encode() for name in names]


def test_the_next_call_continues_a_partial_download(tmp_path: Path) -> None:
    repository = Repository({"m.gguf": _LARGE}, cut_after=3 << 20, down=True)
    with Hub(house__m=repository) as hub:
        with pytest.raises(HubUnreachable, match=r"m\.gguf answered 503"):
            _download(hub, tmp_path)
        assert not (tmp_path / "127.0.0.1").exists(), "a part is not a model"
        repository.down = False
        assert _download(hub, tmp_path).read_bytes() == _LARGE
    (_, first), *_, (_, last) = repository.asked
    assert first == "" and last.startswith("bytes=")


def test_a_server_without_head_is_enough(tmp_path: Path) -> None:
    with Hub(house__m=Repository({"m.gguf": _LARGE}, is_headless=True)) as hub:
        assert _download(hub, tmp_path).read_bytes() == _LARGE


def test_a_corrupt_file_is_removed(tmp_path: Path) -> None:
    with (
        Hub(house__m=Repository({"m.gguf": b"GGUF"}, lies=True)) as hub,
        pytest.raises(PullFailed, match="is corrupt and was removed: its SHA-256 is"),
    ):
        _download(hub, tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with (
        Hub(house__m=Repository({})) as hub,
        pytest.raises(PullFailed, match=r"house/m/resolve/main/m\.gguf answered 404$"),
    ):
        _download(hub, tmp_path)


@pytest.mark.parametrize("url", ["ftp://x/m.gguf", "m.gguf", "http://host/", "https:///m.gguf", "http://host/.gguf"])
def test_what_is_no_url_of_a_file_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(PullFailed, match="is not the URL of a file"):
        download(url, tmp_path, headers={}, say=lambda line: None)
