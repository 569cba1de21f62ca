"""RPC servers. The test with a real one needs a llama.cpp that was built with RPC (CONTRIBUTING.md)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paddock.config import ModelManagerSettings, ModelSettings
from paddock.engine.devices import has_gpu_device
from paddock.engine.rpc import add_rpc_servers
from paddock.errors import ModelLoadFailed, StartupError
from paddock.fleet import has_gpu, open_catalogue
from paddock.fleet.memory.accounts import Accounts
from paddock.fleet.memory.machine import Machine
from paddock.fleet.process.environment import has_rpc
from paddock.fleet.process.rpc import find_rpc_servers
from tests.options import engine_options, new_model
from tests.server import Server, wait_for

_SERVER = os.environ.get("PADDOCK_RPC_SERVER", "")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.mark.parametrize("server", ["localhost", "a b:1", "http://a:1", ":1", "a:", "a:123456"])
def test_a_wrong_address_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        ModelSettings(rpc=[server])


def test_a_build_without_rpc_is_an_error_at_the_start(tiny_models: dict[str, Path]) -> None:
    if has_rpc():
        pytest.skip("this build has RPC")
    settings = ModelManagerSettings(model=tiny_models["llama"], rpc=["127.0.0.1:50052"])
    with pytest.raises(StartupError, match=r"rpc \(--rpc\) of the model 'llama' needs a llama.cpp with RPC"):
        open_catalogue(settings)
    with pytest.raises(ModelLoadFailed, match=r"this build of llama\.cpp has no RPC"):
        add_rpc_servers(["127.0.0.1:50052"])
    add_rpc_servers([])


def test_a_server_that_does_not_answer_is_named() -> None:
    server = f"localhost:{_free_port()}"
    with pytest.raises(ModelLoadFailed, match=f"cannot connect to the RPC server {server}: Connection refused"):
        find_rpc_servers([server])
    with pytest.raises(ModelLoadFailed, match=r"RPC server no\.such\.host\.invalid:1: "):
        find_rpc_servers(["no.such.host.invalid:1"])


def test_names_are_resolved() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert find_rpc_servers([f"localhost:{port}", f"127.0.0.1:{port}"]) == [f"127.0.0.1:{port}"] * 2


def test_weights_on_other_machines_need_no_memory_here(tiny_models: dict[str, Path]) -> None:
    path = str(tiny_models["llama"])
    accounts = Accounts(Machine(), gpu=False)
    here = accounts.needs(new_model("here", path))
    there = accounts.needs(new_model("there", path, options=engine_options(rpc=["10.0.0.2:1"])))
    assert there.keys() == {"host"}
    assert there["host"] < here["host"]


def test_a_library_without_devices_has_no_gpu() -> None:
    assert has_gpu_device() == has_gpu()


@contextmanager
def _rpc_server(binary: str) -> Iterator[int]:
    port = _free_port()
    process = subprocess.Popen(
        [binary, "-H", "127.0.0.1", "-p", str(port), "-t", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:

        def is_listening() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_for(is_listening, 30, "the RPC server to listen")
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not _SERVER, reason="PADDOCK_RPC_SERVER names no RPC server")
def test_a_model_on_an_rpc_server(tiny_models: dict[str, Path]) -> None:
    body = {"prompt": "the horse", "n_predict": 12, "temperature": 0}
    path, env = str(tiny_models["llama"]), {"LLAMA_CPP_LIB_PATH": str(Path(_SERVER).parent)}
    with Server("-m", path, env=env) as local:
        here = local.client.post("/completion", json=body).json()["content"]
    with _rpc_server(_SERVER) as port, Server("-m", path, "--rpc", f"localhost:{port}", "-v", env=env) as server:
        response = server.client.post("/completion", json=body)
        assert response.status_code == 200, (response.text, server.output)
        assert response.json()["content"] == here
        layers = [line for line in server.output if re.search(r"layer +\d+ assigned to device RPC0", line)]
        assert len(layers) == 4
        assert server.client.get("/props").json()["placement"]["rpc"] == [f"127.0.0.1:{port}"]
