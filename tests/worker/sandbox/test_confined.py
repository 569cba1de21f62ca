"""The sandbox in real processes: what it refuses, and what a worker can still do."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paddock.worker.sandbox.calls import MACHINES
from tests.server import Server, wait_for

SECRETS = {
    "PADDOCK_SERVER__LOG_FORMAT": "json",
    "HF_TOKEN": "hf-not-for-workers",
    "AWS_SECRET_ACCESS_KEY": "aws-not-for-workers",
    "OPENAI_API_KEY": "sk-not-for-workers",
    "LLAMA_API_KEY": "llama-not-for-workers",
    "DATABASE_URL": "postgres://not-for-workers",
    "OMP_DISPLAY_AFFINITY": "FALSE",
}


@pytest.fixture(scope="module")
def attempted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("attempts")
    (folder / "slots").mkdir()
    (folder / "model.gguf").write_bytes(b"GGUF")
    (folder / "link.gguf").symlink_to(folder / "model.gguf")
    (folder / "secret").write_bytes(b"secret")
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.sandbox.attempts", json.dumps({"folder": str(folder)})],
        capture_output=True, check=True, text=True, timeout=300, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _needs(attempted: dict[str, Any], part: str) -> None:
    if part not in attempted["active"]:
        pytest.skip(f"not active here: {attempted['missing']}")


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this machine")
def test_no_sockets_no_programs_no_signals(attempted: dict[str, Any]) -> None:
    _needs(attempted, "seccomp")
    outcomes = attempted["outcomes"]
    refused = ("inet", "inet6", "unix", "socket on another thread", "exec", "fork", "signal", "chmod")
    assert {name: outcomes[name] for name in refused} == dict.fromkeys(refused, "PermissionError")


def test_only_its_own_files(attempted: dict[str, Any]) -> None:
    _needs(attempted, "landlock")
    outcomes = attempted["outcomes"]
    refused = (
        "foreign file", "foreign file on another thread", "foreign folder", "new file", "write model",
        # Root may read any process since Linux 6.13 (CAP_PERFMON), in spite of Landlock.
        *(["environment of another"] if os.geteuid() != 0 else []),
    )  # fmt: skip
    assert {name: outcomes[name] for name in refused} == dict.fromkeys(refused, "PermissionError")


def test_what_a_worker_needs_is_allowed(attempted: dict[str, Any]) -> None:
    outcomes = attempted["outcomes"]
    allowed = ("signal itself", "own memory map", "model", "save slot", "rename slot", "library", "thread")
    assert {name: outcomes[name] for name in allowed} == dict.fromkeys(allowed, "done")


def test_with_a_gpu_cuda_may_name_its_threads() -> None:
    """CUDA opens this file with O_TRUNC, and fails to start if it cannot: the model then runs on the CPU."""
    code = (
        "from paddock.types import Sandbox; from paddock.worker.sandbox import confine_files; "
        "import threading; confine_files(Sandbox(gpu=True)); "
        "open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write('cuda')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_with_a_gpu_the_rule_for_its_proc_folder_stays_valid() -> None:
    """The kernel drops the inode of the rule when memory is short, unless a descriptor is open."""
    code = (
        "from paddock.types import Sandbox; from paddock.worker.sandbox import confine_files; import os; "
        "confine_files(Sandbox(gpu=True)); "
        "assert f'/proc/{os.getpid()}' in [os.readlink(f'/proc/self/fd/{fd}') for fd in range(3, 20) "
        "if os.path.lexists(f'/proc/self/fd/{fd}')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.fixture(scope="module")
def server(tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model is a symbolic link. There is a folder for slots."""
    folder = tmp_path_factory.mktemp("linked")
    (folder / "linked.gguf").symlink_to(tiny_models["llama"])
    slots = tmp_path_factory.mktemp("slots")
    arguments = ("-m", str(folder / "linked.gguf"), "-c", "512", "--slot-save-path", str(slots))
    with Server(*arguments, "--api-key", "key-not-for-workers", env=SECRETS) as server:
        server.client.headers["Authorization"] = "Bearer key-not-for-workers"
        yield server


def _worker(server: Server) -> tuple[int, dict[str, Any]]:
    server.chat("hello", max_tokens=2)
    (model,) = server.client.get("/admin/status").raise_for_status().json()["models"]
    return model["pid"], model["sandbox"]


def test_the_environment_of_a_worker_has_no_secrets(server: Server) -> None:
    pid, _ = _worker(server)
    wait_for(lambda: len(server.workers()) >= 1, 30, "a worker")
    for one in {pid, *server.workers()}:  # and the spare worker
        environ = Path(f"/proc/{one}/environ").read_bytes().decode()
        names = {line.partition("=")[0] for line in environ.split("\0")}
        assert "not-for-workers" not in environ
        assert not names & (SECRETS.keys() - {"OMP_DISPLAY_AFFINITY"})
        assert "OMP_DISPLAY_AFFINITY" in names


def test_all_threads_of_a_worker_are_confined(server: Server) -> None:
    pid, sandbox = _worker(server)
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        assert status["NoNewPrivs"] == "1"
        if "seccomp" in sandbox["active"]:
            assert status["Seccomp"] == "2"
    reasons = " ".join(sandbox.get("missing", ()))
    assert {"no_new_privs", "landlock", "seccomp"} == {*sandbox["active"], *reasons.replace(":", "").split()} & {
        "no_new_privs", "landlock", "seccomp"
    }  # fmt: skip
    assert "would apply to one only" not in reasons


def test_a_spare_worker_is_confined(server: Server) -> None:
    """It has loaded the library before it gets a model, and must still have a single thread."""
    old, before = _worker(server)
    libraries = _libraries(old)
    assert libraries
    server.client.post("/admin/unload", json={"model": "all"}).raise_for_status()
    wait_for(lambda: len(server.workers()) == 1 and old not in server.workers(), 30, "a spare worker")
    (spare,) = server.workers()
    wait_for(lambda: _libraries(spare) == libraries, 30, "it to load the library")
    pid, sandbox = _worker(server)
    assert (pid, sandbox) == (spare, before)


def _libraries(pid: int) -> set[str]:
    """libllama, which has another name in a package."""
    return set(re.findall(r"/\S*/[^/\s]*llama[^/\s]*\.so\S*", Path(f"/proc/{pid}/maps").read_text()))


def test_a_confined_worker_saves_and_restores_slots(server: Server) -> None:
    server.chat("hello there", max_tokens=2, id_slot=0)
    for action in ("save", "restore"):
        answer = server.client.post("/slots/0", params={"action": action}, json={"filename": "one"})
        assert answer.status_code == 200, answer.text


def test_the_sandbox_can_be_disabled(tiny_models: dict[str, Path]) -> None:
    with Server("-m", str(tiny_models["llama"]), "-c", "256", "--no-sandbox") as server:
        pid, sandbox = _worker(server)
        assert "NoNewPrivs:\t0" in Path(f"/proc/{pid}/status").read_text()
        assert sandbox == {}
