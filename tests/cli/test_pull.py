"""`paddock pull` and `paddock serve -hf`, as processes, against a hub on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from paddock.config import ModelManagerSettings
from paddock.errors import PullFailed
from paddock.fleet import open_catalogue
from paddock.fleet.catalogue.hub import Source, pulled
from tests.forking import run_command
from tests.hub import REVISION, Hub, Repository
from tests.server import Server
from tests.tiers import full

# More than one chunk of the client's, so that a part of it arrives when the rest does not.
_LARGE = os.urandom(1 << 20) * 24


def _environment(url: str, home: Path, **more: str) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return {**ours, "HF_ENDPOINT": url, "HF_HOME": str(home / "hf"), "XDG_CACHE_HOME": str(home / "cache"), **more}


def _pull(hub: Hub, folder: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = _environment(hub.url, folder, **environment)
    return run_command("pull", *args, "--models-dir", str(folder), env=env, cwd=folder)


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (1, "")
    line = done.stderr.splitlines()[-1]
    assert line.startswith("paddock: ")
    return line


def _listed(folder: Path) -> list[str]:
    return [model.name for model in open_catalogue(ModelManagerSettings(models_directory=folder))]


def test_a_model_is_downloaded_once(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    data = tiny_models["llama"].read_bytes()
    repository = Repository({"README.md": b"x", "tiny-Q4_K_M.gguf": data, "tiny-Q8_0.gguf": data[:-1] + b"!"})
    with Hub(house__tiny=repository) as hub:
        done = _pull(hub, tmp_path, "house/tiny")
        assert done.returncode == 0, done.stderr
        path = tmp_path / "house" / "tiny" / "tiny-Q4_K_M.gguf"
        assert done.stdout.strip() == str(path)
        assert path.read_bytes() == data
        assert _pull(hub, tmp_path, "house/tiny").stdout == done.stdout
        assert repository.asked == [("tiny-Q4_K_M.gguf", "")], "what is there is not fetched again"
        assert _pull(hub, tmp_path, "house/tiny:q8_0").returncode == 0
    assert sorted(_listed(tmp_path)) == ["tiny-Q4_K_M", "tiny-Q8_0"]


@full
def test_a_split_model_is_downloaded_completely_or_not_at_all(tmp_path: Path) -> None:
    parts = {f"big-Q8_0-0000{number}-of-00002.gguf": _LARGE[number:] for number in (1, 2)}
    repository = Repository(parts, cut_after=None)
    with Hub(house__big=repository) as hub:
        repository.lies = True
        assert "is corrupt" in _failure(_pull(hub, tmp_path, "house/big:Q8_0"))
        assert _listed(tmp_path) == []
        repository.lies = False
        done = _pull(hub, tmp_path, "house/big:Q8_0")
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("big-Q8_0-00001-of-00002.gguf")
    (model,) = open_catalogue(ModelManagerSettings(models_directory=tmp_path))
    assert [Path(file.path).read_bytes() for file in model.files] == list(parts.values())


@full
def test_a_broken_connection_is_retried(tmp_path: Path) -> None:
    repository = Repository({"m-Q4_K_M.gguf": _LARGE}, cut_after=20 << 20)
    with Hub(house__m=repository) as hub:
        done = _pull(hub, tmp_path, "house/m")
        assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == _LARGE
    (_, first), (_, second) = repository.asked
    assert first == "" and 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 20 << 20


@full
def test_the_next_process_continues_a_partial_download(tmp_path: Path) -> None:
    repository = Repository({"m-Q4_K_M.gguf": _LARGE}, cut_after=20 << 20, down=True)
    with Hub(house__m=repository) as hub:
        assert "answered 503" in _failure(_pull(hub, tmp_path, "house/m"))
        assert _listed(tmp_path) == [], "half a file is nothing that could be served"
        repository.down = False
        done = _pull(hub, tmp_path, "house/m")
        assert done.returncode == 0, done.stderr
        assert "resuming m-Q4_K_M.gguf" in done.stderr
    assert Path(done.stdout.strip()).read_bytes() == _LARGE
    assert repository.asked[-1][1].startswith("bytes=")
    assert [path.name for path in (tmp_path / ".pull").iterdir()] == ["verified.json"]


def test_a_file_with_a_wrong_hash_is_removed(tmp_path: Path) -> None:
    repository = Repository({"m-Q4_K_M.gguf": b"GGUF and more"}, lies=True)
    with Hub(house__m=repository) as hub:
        said = _failure(_pull(hub, tmp_path, "house/m"))
    assert "m-Q4_K_M.gguf is corrupt and was removed: its SHA-256 is" in said
    assert list((tmp_path / ".pull").iterdir()) == []
    assert _listed(tmp_path) == []


@full
def test_a_changed_file_of_the_same_size_is_downloaded_again(tmp_path: Path) -> None:
    data = b"GGUF and more"
    path = tmp_path / "house" / "m" / "m-Q4_K_M.gguf"
    path.parent.mkdir(parents=True)
    for in_git in (False, True):
        path.write_bytes(b"x" * len(data))
        with Hub(house__m=Repository({"m-Q4_K_M.gguf": data}, in_git=in_git)) as hub:
            done = _pull(hub, tmp_path, "house/m")
            assert done.returncode == 0, done.stderr
            assert "m-Q4_K_M.gguf differs from the hub: pulling it again" in done.stderr
            assert path.read_bytes() == data
            assert "verifying" not in _pull(hub, tmp_path, "house/m").stderr, "it has been compared"
            path.write_bytes(data)
            assert "verifying m-Q4_K_M.gguf" in _pull(hub, tmp_path, "house/m").stderr, "the file was modified"
            assert hub.repositories["house/m"].asked == [("m-Q4_K_M.gguf", "")]


def test_a_damaged_file_in_git_storage_is_detected(tmp_path: Path) -> None:
    with Hub(house__m=Repository({"m-Q4_K_M.gguf": b"GGUF"}, in_git=True, lies=True)) as hub:
        assert "its git digest is" in _failure(_pull(hub, tmp_path, "house/m"))


def test_a_revision_can_be_pinned(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    repository = Repository({"m-Q4_K_M.gguf": tiny_models["llama"].read_bytes()})
    other = "f" * 40
    with Hub(house__m=repository) as hub:
        done = _pull(hub, tmp_path, f"house/m@{REVISION}:Q4_K_M")
        assert done.returncode == 0, done.stderr
        assert f"house/m is at revision {REVISION}" in done.stderr
        assert "answered 404" in _failure(_pull(hub, tmp_path, f"house/m@{other}"))
    with pytest.raises(PullFailed, match=f"is from revision {REVISION}, not {other}"):
        pulled(Source.parse(f"house/m@{other}"), tmp_path)
    assert pulled(Source.parse(f"house/m@{REVISION}"), tmp_path).name == "m-Q4_K_M.gguf"


@full
def test_every_failure_is_one_line(tmp_path: Path) -> None:
    with Hub(
        house__gated=Repository({}, gated=True),
        house__private=Repository({"m-Q8_0.gguf": b"GGUF"}, token="secret"),
        house__words=Repository({"model.safetensors": b"x"}),
        house__some=Repository({"m-Q8_0.gguf": b"x", "m-Q2_K.gguf": b"x"}),
    ) as hub:
        for name, why in {
            "house/none": "no repository house/none",
            "house/private": "or it is private and needs a token",
            "house/gated": "is gated: accept its terms",
            "house/words": "house/words: it has no GGUF model",
            "house/some:Q4_K_M": "it has no Q4_K_M; it has Q2_K, Q8_0",
            "house": "OWNER/NAME",
        }.items():
            done = _pull(hub, tmp_path, name)
            assert why in _failure(done)
            assert len(done.stderr.splitlines()) == 1
        assert _pull(hub, tmp_path, "house/private", "--token", "secret").returncode == 0
        assert _pull(hub, tmp_path, "house/private", HF_TOKEN="secret").returncode == 0
    assert "cannot reach" in _failure(_pull(hub, tmp_path, "house/some"))


def test_serving_from_the_hub_and_again_offline(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    repository = Repository({"tiny-Q4_K_M.gguf": tiny_models["llama"].read_bytes()})
    with Hub(house__tiny=repository) as hub, Server("-hf", "house/tiny", env=_environment(hub.url, tmp_path)) as server:
        assert server.chat("hello", max_tokens=2)["model"]
        assert [model["id"] for model in server.client.get("/v1/models").json()["data"]] == ["tiny-Q4_K_M"]
    assert (tmp_path / "cache" / "paddock" / "models" / "house" / "tiny" / "tiny-Q4_K_M.gguf").is_file()
    with Server("-hf", "house/tiny", env=_environment(_nobody(), tmp_path)) as server:
        server.wait_for_line("serving the model that was downloaded earlier")
    with (
        pytest.raises(AssertionError, match="cannot reach"),
        Server("-hf", "house/other", env=_environment(_nobody(), tmp_path)),
    ):
        pass


@full
@pytest.mark.parametrize("variable", ["LLAMA_CACHE", "HF_HUB_CACHE"])
def test_what_llama_server_has_downloaded_is_used(tmp_path: Path, tiny_models: dict[str, Path], variable: str) -> None:
    data = tiny_models["llama"].read_bytes()
    cache = tmp_path / "hub" / "models--house--tiny"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(REVISION)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "blob").write_bytes(data)
    (cache / "snapshots" / REVISION).mkdir(parents=True)
    (cache / "snapshots" / REVISION / "tiny-Q4_K_M.gguf").symlink_to(cache / "blobs" / "blob")
    repository = Repository({"tiny-Q4_K_M.gguf": data})
    with Hub(house__tiny=repository) as hub:
        environment = _environment(hub.url, tmp_path, **{variable: str(tmp_path / "hub")})
        with Server("-hf", "house/tiny", "--offline", env=environment) as server:
            assert server.client.get("/props").json()["model_path"].startswith(str(cache))
        done = _pull(hub, tmp_path, "house/tiny", **{variable: str(tmp_path / "hub")})
        assert done.returncode == 0, done.stderr
        assert "which is in the hub's cache" in done.stderr
        assert repository.asked == []
        assert Path(done.stdout.strip()).samefile(cache / "blobs" / "blob")
        (cache / "blobs" / "blob").write_bytes(data[:-1] + b"?")
        Path(done.stdout.strip()).unlink()
        assert _pull(hub, tmp_path, "house/tiny", **{variable: str(tmp_path / "hub")}).returncode == 0
        assert repository.asked == [("tiny-Q4_K_M.gguf", "")], "a damaged file of the cache is not used"


def _nobody() -> str:
    """An address without a server."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"http://127.0.0.1:{sock.getsockname()[1]}"
