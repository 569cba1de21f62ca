"""`paddock cache`: what a running server or a folder keeps, and how it is cleared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.server import Server
from tests.tiers import full


def _paddock(*words: str, cwd: Path, answer: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paddock", "cache", *words],
        input=answer,
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_running_server_is_listed_and_cleared(tmp_path: Path) -> None:
    with Server("-m", "fake:") as server:
        server.chat("the gate is open")
        at = ["--url", server.url]
        listed = _paddock(*at, cwd=tmp_path)
        assert listed.returncode == 0, listed.stderr
        header, row = listed.stdout.splitlines()
        assert header.split() == ["MODEL", "STATE", "TENANT", "CELLS", "HOST", "DISK"]
        assert row.split()[:3] == ["fake", "loaded", "-"]
        assert json.loads(_paddock(*at, "--json", cwd=tmp_path).stdout)["models"][0]["model"] == "fake"
        refused = _paddock("clear", *at, cwd=tmp_path, answer="n\n")
        assert refused.returncode == 1 and "Clear the cache of all models and tenants?" in refused.stderr
        assert json.loads(_paddock(*at, "--json", cwd=tmp_path).stdout)["models"][0]["tenants"]
        cleared = _paddock("clear", "--yes", "--tenant", "-", *at, "--json", cwd=tmp_path)
        assert json.loads(cleared.stdout)["models"][0]["tenants"] == []


@full
def test_without_a_server_the_folders_are_read(tmp_path: Path) -> None:
    nowhere = {"PADDOCK_SERVER__PORT": "9"}
    nothing = _paddock(cwd=tmp_path, **nowhere)
    assert nothing.returncode == 1 and "no cache_disk" in nothing.stderr
    folder = tmp_path / "kv"
    with Server("-m", "fake:", "--cache-disk", str(folder)) as server:
        server.chat("the gate is open " * 40, max_tokens=1)
        assert server.client.get("/admin/cache").json()["models"][0]["model"] == "fake"
    settings = nowhere | {"PADDOCK_MODEL_MANAGER__CACHE_DISK": str(folder)}
    listed = json.loads(_paddock("--json", cwd=tmp_path, **settings).stdout)["models"]
    assert sum(one["disk"]["tokens"] for model in listed for one in model["tenants"]) > 100
    name = listed[0]["model"]
    other = _paddock("clear", "--yes", "--model", "other", "--json", cwd=tmp_path, **settings)
    assert json.loads(other.stdout)["models"] == listed
    cleared = _paddock("clear", "--yes", "--model", name, "--json", cwd=tmp_path, **settings)
    assert json.loads(cleared.stdout)["models"] == []


def test_a_server_that_is_named_must_answer(tmp_path: Path) -> None:
    answer = _paddock("--url", "http://127.0.0.1:9", cwd=tmp_path)
    assert answer.returncode == 1 and "no server answers" in answer.stderr
