from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

from paddock.config import ServerSettings
from paddock.gateway.auth.keys import read_keys
from tests.forking import run_command
from tests.server import Server


def _keys(*args: str) -> subprocess.CompletedProcess[str]:
    return run_command("keys", *args)


def test_a_server_with_the_hash_accepts_the_new_key(tmp_path: Path) -> None:
    made = {
        name: _keys("new", name, *more).stdout.splitlines() for name, more in (("anna", ()), ("boss", ("--admin",)))
    }
    (anna, anna_entry), (boss, boss_entry) = made.values()
    assert anna != boss
    entries = json.loads("{" + anna_entry + "}")["keys"] | json.loads("{" + boss_entry + "}")["keys"]
    assert anna not in anna_entry
    (tmp_path / "c.json").write_text(json.dumps({"server": {"keys": entries}}))
    with Server("-m", "fake:", "--config", str(tmp_path / "c.json")) as server:
        for key, models, status in ((anna, 200, 403), (boss, 200, 200), (anna[:-1], 401, 401)):
            headers = {"authorization": f"Bearer {key}"}
            assert server.client.get("/v1/models", headers=headers).status_code == models
            assert server.client.get("/admin/status", headers=headers).status_code == status


def test_an_invalid_name() -> None:
    done = _keys("new", "an na")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "paddock: 'an na': a name has at most 64 letters, digits and . _ @ -, and begins with a letter or digit\n"
    )


def test_rotating_a_key_keeps_the_current_one_until_it_expires(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"server": {"keys": {"anna": {"key": "anna-key", "models": ["x"]}}}}))
    done = _keys("rotate", "anna", "--config", str(file), "--days", "30")
    assert done.returncode == 0, done.stderr
    key, entry = done.stdout.splitlines()
    keys = json.loads("{" + entry + "}")["keys"]
    assert keys["anna"]["models"] == ["x"]
    assert "anna-key" not in entry
    digests = [found.digest for found in read_keys(ServerSettings.model_validate({"keys": keys}))]
    assert digests == [hashlib.sha256(each.encode()).digest() for each in (key, "anna-key")]
    assert keys["anna"]["previous"][0]["expires_at"] < keys["anna"]["expires_at"]
    wrong = _keys("rotate", "ben", "--config", str(file))
    assert wrong.returncode == 1
    assert "known keys: anna" in wrong.stderr
