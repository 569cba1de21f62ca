"""The checks of `paddock doctor` for the server: its port, keys, files and service."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.cli.doctor.finding import Level, check_folder
from paddock.cli.doctor.machine import (
    check_installation,
    check_name,
    examine_installation,
)
from paddock.cli.doctor.server import (
    Holder,
    check_cors,
    check_exposure,
    check_keys,
    check_metrics,
    check_port,
    check_root,
    check_secret,
    check_service,
    check_tls,
    examine_port,
)
from tests.certificates import make_certificate
from tests.cli.findings import worst
from tests.tiers import full


@pytest.mark.parametrize(
    ("error", "holder", "level", "says"),
    [
        (None, None, "ok", "is free"),
        (OSError(errno.EADDRINUSE, ""), Holder(12, ("/usr/sbin/nginx", "-g")), "problem", "kill 12"),
        (OSError(errno.EADDRINUSE, ""), Holder(), "problem", "sudo ss -tlnp | grep :8080"),
        (OSError(errno.EADDRINUSE, ""), Holder(7, ("python", "/venv/bin/paddock", "serve")), "ok", "pid 7"),
        (OSError(errno.EADDRINUSE, ""), Holder(7, ("python", "-m", "paddock", "serve")), "ok", "served already"),
        (OSError(errno.EADDRINUSE, ""), Holder(7, ("vi", "paddock")), "problem", "kill 7"),
        (OSError(errno.EACCES, ""), None, "problem", "above 1023"),
        (OSError(errno.EADDRNOTAVAIL, ""), None, "problem", "is not an address of this machine"),
        (OSError(errno.ENOBUFS, "No buffer space"), None, "problem", "No buffer space"),
        (socket.gaierror(-2, "Name or service not known"), None, "problem", "cannot be resolved"),
    ],
)
def test_the_port(error: OSError | None, holder: Holder | None, level: Level, says: str) -> None:
    found, text = worst([check_port("127.0.0.1", 8080, error, holder)])
    assert found == level and says in text


def test_the_process_on_the_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        finding = examine_port("127.0.0.1", port)
        assert finding.level == "problem" and f"pid {os.getpid()}" in finding.text
    assert examine_port("127.0.0.1", 0).level == "ok"
    assert "cannot be resolved" in examine_port("no.such.host.invalid", 80).text


@full
def test_a_running_paddock_is_recognised(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paddock", "serve", "-m", "fake:", "--port", "0", "--lazy"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())
        assert found is not None
        finding = examine_port("127.0.0.1", int(found[1]))
        server.terminate()
    assert finding.level == "ok" and f"pid {server.pid}" in finding.text


@pytest.mark.parametrize(
    ("host", "keys", "tls", "level", "says"),
    [
        ("127.0.0.1", False, False, "ok", "only this machine"),
        ("::1", False, False, "ok", "only this machine"),
        ("localhost", False, False, "ok", "only this machine"),
        ("0.0.0.0", False, True, "warning", "no API key is set"),
        ("gpu.example.org", False, False, "warning", "api_key_file"),
        ("0.0.0.0", True, False, "warning", "clear text"),
        ("0.0.0.0", True, True, "ok", "over TLS"),
    ],
)
def test_exposure(host: str, keys: bool, tls: bool, level: Level, says: str) -> None:
    found, text = worst([check_exposure(host, keys=keys, tls=tls)])
    assert found == level and says in text


@pytest.mark.parametrize(
    ("origins", "keys", "level"),
    [
        (["http://localhost:5000", "https://chat.example.org"], False, "ok"),
        ([], False, "ok"),
        (["*"], True, "ok"),
        (["*"], False, "warning"),
        (["http://localhost:5000", "*"], False, "warning"),
    ],
)
def test_cors_origins(origins: list[str], keys: bool, level: Level) -> None:
    assert worst([check_cors(origins, keys=keys)])[0] == level


def test_secrets(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert worst(check_secret(file, "the key file"))[0] == "problem"
    file.touch(mode=0o644)
    level, text = worst(check_secret(file, "the key file"))
    assert level == "warning" and f"chmod 600 {file}" in text
    file.chmod(0o600)
    assert worst(check_secret(file, "the key file"))[0] == "ok"


def test_certificates(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path / "one")
    _, other = make_certificate(tmp_path / "two")
    assert list(check_tls(None, None)) == []
    assert worst(check_tls(certificate, None))[0] == "problem"
    assert worst(check_tls(certificate, key))[0] == "ok"
    level, text = worst(check_tls(certificate, other))
    assert level == "problem" and "belong together" in text
    assert worst(check_tls(tmp_path / "none", key))[0] == "problem"
    (tmp_path / "words").write_text("not a certificate")
    assert worst(check_tls(tmp_path / "words", key))[0] == "problem"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    (tmp_path / "key").touch(mode=0o000)
    assert check_folder(tmp_path / "closed", "the models directory", "models").level == "problem"
    assert check_folder(tmp_path / "closed", "the folder", "permissions", writable=True).level == "problem"
    assert worst(check_secret(tmp_path / "key", "the key file"))[0] == "problem"


def test_root_metrics_and_short_keys() -> None:
    assert check_root(1000) is None
    root = check_root(0)
    assert root is not None and root.level == "warning" and "root" in root.text
    assert check_metrics("127.0.0.1", metrics=True, metrics_key=False) is None
    assert check_metrics("0.0.0.0", metrics=False, metrics_key=False) is None
    assert check_metrics("0.0.0.0", metrics=True, metrics_key=True) is None
    metrics = check_metrics("0.0.0.0", metrics=True, metrics_key=False)
    assert metrics is not None and metrics.level == "warning" and "/metrics" in metrics.text
    assert check_keys([]) is None and check_keys(["x" * 32]) is None
    keys = check_keys(["x" * 32, "abc"])
    assert keys is not None and keys.level == "warning"
    assert "1 of 2 API keys is shorter" in keys.text and "has 3" in keys.text and "abc" not in keys.text


@pytest.mark.parametrize(
    ("shown", "level", "says"),
    [
        ({"ActiveState": "active", "NRestarts": "0", "UnitFileState": "enabled"}, "ok", "is running"),
        ({"ActiveState": "active", "NRestarts": "0", "UnitFileState": "disabled"}, "warning", "enable paddock"),
        ({"ActiveState": "active", "NRestarts": "4"}, "warning", "restarted 4 times"),
        ({"ActiveState": "inactive", "NRestarts": "0"}, "warning", "systemctl --user start paddock"),
        ({"ActiveState": "activating", "NRestarts": "3", "Result": "oom-kill"}, "problem", "memory ran out"),
        ({"ActiveState": "failed", "Result": "start-limit-hit"}, "problem", "journalctl --user -u paddock -n 50"),
    ],
)
def test_the_service(shown: dict[str, str], level: Level, says: str) -> None:
    finding = check_service("paddock", {"LoadState": "loaded", **shown}, system=False)
    assert finding is not None
    found, text = worst([finding])
    assert found == level and says in text


def test_a_missing_service_gives_no_finding() -> None:
    assert check_service("paddock", {}, system=True) is None
    assert check_service("paddock", {"LoadState": "not-found", "ActiveState": "inactive"}, system=True) is None


def test_the_installation() -> None:
    assert all(finding.level in ("ok", "warning") for finding in examine_installation())
    assert check_name({"paddock-llm"}) is None
    other, missing = check_name({"paddock-llm", "paddock"}), check_name(set())
    assert other is not None and other.level == "warning" and "pip uninstall paddock," in other.cure
    assert missing is not None and missing.level == "warning" and "pip install paddock-llm" in missing.cure
    required = ["click>=8.2", "uvicorn>=0.34", 'rich>=14.0; extra == "run"']
    finding = check_installation(required, {"click": "8.2"})
    assert finding.level == "problem" and finding.text == "uvicorn is not installed"
    assert check_installation(required, {"click": "8.2", "uvicorn": "1"}).level == "ok"
