"""RPC servers: programs of llama.cpp on other machines that keep and compute a part of a model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from paddock.engine.libllama import lib
from paddock.errors import ModelLoadFailed

_added: set[str] = set()


def add_rpc_servers(servers: Sequence[str]) -> None:
    """Register the devices of these servers, so that libllama places models on them. Idempotent.

    Raises `ModelLoadFailed` if the library has no RPC or a server has no device.
    """
    new = [server for server in servers if server not in _added]
    if not new:
        return
    registry = lib.ggml_backend_reg_by_name(b"RPC")
    if not registry:
        raise ModelLoadFailed("this build of llama.cpp has no RPC")
    address = lib.ggml_backend_reg_get_proc_address(ctypes.c_void_p(registry), b"ggml_backend_rpc_add_server")
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    for server in new:
        found = add(server.encode())
        if not found:
            raise ModelLoadFailed(f"the RPC server {server} has no device, or it has another version of llama.cpp")
        lib.ggml_backend_register(ctypes.c_void_p(found))
        _added.add(server)
