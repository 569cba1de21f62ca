"""The audit log records every administrative request and its result."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import StartupError
from paddock.gateway.auth.audit import AuditLog, detail_of, result_of
from tests.server import Server, wait_for


def _records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_only_administrative_requests_are_recorded(tmp_path: Path) -> None:
    log, config = tmp_path / "audit.jsonl", tmp_path / "config.json"
    keys = {"boss": {"key": "boss-key", "admin": True}, "anna": {"key": "anna-key"}}
    server_settings = {"keys": keys, "audit_log": str(log)}
    config.write_text(json.dumps({"server": server_settings, "model_manager": {"model": "fake:"}}))
    with Server("--config", str(config)) as server:

        def post(key: str, path: str, **body: Any) -> int:
            headers = {"authorization": f"Bearer {key}", "x-request-id": "the-request"}
            return server.client.post(path, json=body, headers=headers).status_code

        assert post("boss-key", "/admin/load", model="fake") == 200
        assert post("boss-key", "/admin/unload", model="nothing") == 404
        assert post("anna-key", "/admin/unload", model="fake") == 403
        assert post("no-key", "/admin/reload") == 401
        assert post("anna-key", "/v1/chat/completions", messages=[{"role": "user", "content": "say: a"}]) == 200
        server.client.get("/admin/status", headers={"authorization": "Bearer boss-key"})
        wait_for(lambda: len(_records(log)) == 4, 30, "four records")
        log.rename(tmp_path / "old")  # as logrotate does
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: log.exists() and log.read_text().endswith("\n"), 30, "a record in a new file")
    load, unload, refused, unknown = _records(tmp_path / "old")
    assert load | {"time": "", "request_id": ""} == {
        "time": "", "action": "POST /admin/load", "key": "boss", "address": "127.0.0.1", "result": "ok",
        "status": 200, "detail": {"model": "fake"}, "request_id": "",
    }  # fmt: skip
    assert load["request_id"] == "the-request"
    assert load["time"].endswith("Z") and load["time"] <= unload["time"] <= unknown["time"]
    assert (unload["key"], unload["status"], unload["result"]) == ("boss", 404, "refused")
    assert (refused["key"], refused["status"]) == ("anna", 403)
    assert ("key" not in unknown, unknown["status"], "detail" in unknown) == (True, 401, False)
    (reload,) = _records(log)
    assert (reload["action"], reload["result"]) == ("SIGHUP", "ok")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "-key" not in log.read_text() + (tmp_path / "old").read_text()


def test_the_file_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    for action in ("first", "second"):
        log = AuditLog(file)
        log.record(action, 200)
        log.close()
    assert [record["action"] for record in _records(file)] == ["first", "second"]


def test_a_file_that_cannot_be_written_is_a_startup_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot write the audit log"):
        AuditLog(tmp_path / "none" / "audit")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartupError, match="cannot write the audit log"):
        AuditLog(tmp_path / "link")


def test_records_that_could_not_be_written_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    log = AuditLog(folder / "audit")
    os.rename(folder, tmp_path / "away")  # the file cannot be reopened or created
    for action in ("lost", "lost too"):
        log.record(action, 200)
    wait_for(lambda: log._lost == 2, 30, "two failures")
    os.rename(tmp_path / "away", folder)
    log.record("found", 200)
    log.close()
    (record,) = _records(folder / "audit")
    assert (record["action"], record["lost"]) == ("found", 2)


@given(st.binary(max_size=6000))
def test_any_body_can_be_recorded(body: bytes) -> None:
    assert len(json.dumps(detail_of(body))) <= 12 * 4096 + 100


def test_the_result_of_each_status() -> None:
    assert [result_of(status) for status in (0, 200, 401, 503)] == ["unknown", "ok", "refused", "failed"]
