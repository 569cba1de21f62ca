"""Where the model of `paddock serve` comes from: repositories, URLs and earlier downloads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.forking import run_command
from tests.hub import Hub, Repository
from tests.server import Server
from tests.tiers import full


def _environment(url: str, home: Path) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return {**ours, "HF_ENDPOINT": url, "HF_HOME": str(home / "hf"), "XDG_CACHE_HOME": str(home / "cache")}


def _serve(home: Path, *arguments: str, url: str = "http://127.0.0.1:1") -> subprocess.CompletedProcess[str]:
    return run_command("serve", "--port", "0", *arguments, env=_environment(url, home), cwd=home)


@full
def test_a_file_and_a_draft_model_of_repositories_and_again_offline(
    tmp_path: Path, tiny_models: dict[str, Path]
) -> None:
    large, small = tiny_models["llama"].read_bytes(), tiny_models["draft"].read_bytes()
    hub = Hub(
        house__tiny=Repository({"tiny-Q4_K_M.gguf": small, "other/tiny.gguf": large}),
        house__draft=Repository({"draft-Q8_0.gguf": small}),
    )
    line = ["-hf", "house/tiny", "-hff", "other/tiny.gguf", "-hfd", "house/draft:Q8_0"]
    with hub, Server(*line, env=_environment(hub.url, tmp_path)) as server:
        props = server.client.get("/props").json()
        assert props["model_path"].endswith("house/tiny/other/tiny.gguf")
        assert props["draft"]["model_path"].endswith("house/draft/draft-Q8_0.gguf")
        assert server.chat("a", max_tokens=2)["usage"]["completion_tokens"] == 2
    with Server(*line, "--offline", env=_environment("http://127.0.0.1:1", tmp_path)) as server:
        assert server.client.get("/props").json() == props
        assert not any("downloaded earlier" in line for line in server.output)
    listed = _serve(tmp_path, "-cl")
    assert (listed.returncode, listed.stdout.splitlines()) == (
        0,
        ["number of models in cache: 2", "   1. house/draft:Q8_0", "   2. house/tiny:TINY"],
    )
    missing = _serve(tmp_path, "-hf", "house/other", "--offline")
    assert missing.returncode == 1
    assert "house/other: it has no GGUF model; --offline downloads nothing" in missing.stderr


@full
def test_a_model_by_its_url_and_again_without_a_network(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    repository = Repository({"m.gguf": tiny_models["llama"].read_bytes()})
    with Hub(house__m=repository) as hub:
        line = ["-mu", f"{hub.url}/house/m/resolve/main/m.gguf"]
        with Server(*line, env=_environment(hub.url, tmp_path)) as server:
            assert server.client.get("/v1/models").json()["data"][0]["id"] == "m"
            assert server.chat("a", max_tokens=1)["usage"]["completion_tokens"] == 1
    with Server(*line, env=_environment(hub.url, tmp_path)) as server:
        server.wait_for_line("serving the model that was downloaded earlier")
    with Server(*line, "--offline", env=_environment(hub.url, tmp_path)) as server:
        assert server.client.get("/props").json()["model_path"].endswith("models/127.0.0.1/m.gguf")


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (["-hff", "m.gguf"], 2, "--hf-file needs the repository of the file"),
        (["-hf", "a/b", "-mu", "http://x/m.gguf"], 2, "--hf-repo and --model-url are mutually exclusive"),
        (["-hf", "a/b", "-m", "m.gguf"], 1, "-hf and -m are mutually exclusive"),
        (
            ["-m", "fake:", "-hfd", "a/b", "-md", "d.gguf"],
            1,
            "--hf-repo-draft and --model-draft are mutually exclusive",
        ),
        (["-mu", "http://127.0.0.1:1/m.gguf"], 1, "cannot reach http://127.0.0.1:1/m.gguf"),
        (["-mu", "m.gguf"], 1, "'m.gguf' is not the URL of a file"),
    ],
)
def test_a_wrong_source_ends_the_start(tmp_path: Path, arguments: list[str], status: int, problem: str) -> None:
    done = _serve(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert problem in done.stderr


def test_devices_and_a_completion_script_are_printed(tmp_path: Path) -> None:
    devices = _serve(tmp_path, "--list-devices")
    assert (devices.returncode, devices.stdout.splitlines()[0]) == (0, "Available devices:")
    script = _serve(tmp_path, "--completion-bash")
    assert script.returncode == 0 and "_PADDOCK_COMPLETE=bash_complete" in script.stdout
