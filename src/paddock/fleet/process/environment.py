"""The environment variables of a worker."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from paddock.libraries import VARIABLE, find_library
from paddock.types import EngineOptions

_GPU_BACKENDS = ("cuda", "hip", "metal", "musa", "opencl", "sycl", "vulkan")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")
"""Select the devices of each backend."""
_INHERITED = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|TZ|TMPDIR|MALLOC_.*|LC_.*|PYTHON.*|LD_LIBRARY_PATH|LD_PRELOAD"
    "|OMP_.*|GOMP_.*|KMP_.*|MKL_.*|OPENBLAS_.*|NUMEXPR_.*|RAYON_.*"
    "|GGML_.*|LLAMA_.*|CUDA_.*|CUBLAS_.*|NVIDIA_.*|NCCL_.*|HIP_.*|ROCR_.*|ROCM_.*|HSA_.*|AMD_.*|GPU_.*|VK_.*"
    "|MESA_.*|ONEAPI_.*|SYCL_.*|ZE_.*|XDG_RUNTIME_DIR|XDG_CACHE_HOME|XDG_DATA_DIRS|DYLD_.*|COVERAGE_.*"
    "|CONDA_PREFIX|NIX_PROFILES|PADDOCK_CHECK_CACHE|PADDOCK_DEVICE_SELECTION|PADDOCK_LIBLLAMA"
)
_SPINS_PER_LEVEL = 6000
"""Level 50 of `poll` is the default of OpenMP (libgomp): 300,000 rounds before a waiting thread sleeps."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")
"""Never inherited: llama-server's settings, for example, include LLAMA_API_KEY and LLAMA_ARG_HF_TOKEN."""


def environment(options: EngineOptions | None = None, *, library: Path | None = None) -> dict[str, str]:
    """The environment of a worker with these options. The user's variables win over the defaults. `library` is used
    instead of the one that the search finds.
    """
    environment = {
        # numpy's BLAS would start a thread per core at import; it is not used here.
        "OPENBLAS_NUM_THREADS": "1",
    }
    if options is not None and options.poll is not None:
        environment["GOMP_SPINCOUNT"] = str(options.poll * _SPINS_PER_LEVEL)
    if options is not None and options.n_threads >= (os.cpu_count() or 1) > 1 and not options.cpus:
        # Two spinning threads on one core block each other. With a thread per core, pinning them keeps a busy
        # neighbour from collapsing the throughput (docs/lab.md).
        environment["OMP_PROC_BIND"] = "true"
    environ = os.environ if library is None else {**os.environ, VARIABLE: str(library)}
    if _built_for("cuda", environ=environ):
        # llama.cpp's CUDA library contains parts of libstdc++; loading crashes unless the real one comes first.
        environment["LD_PRELOAD"] = "libstdc++.so.6"
    seen = dict.fromkeys(_VISIBLE, options.devices) if options is not None and options.devices else {}
    return environment | inherited(environ) | seen


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that configure native code and Python. No key, token or server setting reaches a worker."""
    return {
        name: value
        for name, value in environ.items()
        if _INHERITED.fullmatch(name) and not _SECRET.search(name.upper())
    }


def has_cuda() -> bool:
    """Whether llama.cpp was built for CUDA, by its files; nothing is imported."""
    return _built_for("cuda")


def has_gpu() -> bool:
    """Whether llama.cpp was built for any GPU."""
    return _built_for(*_GPU_BACKENDS)


def has_rpc() -> bool:
    """Whether llama.cpp was built with its RPC backend."""
    return _built_for("rpc")


def _built_for(*backends: str, environ: Mapping[str, str] = os.environ) -> bool:
    found = find_library(environ)
    return found is not None and any(list(found.path.parent.glob(f"libggml-{backend}.*")) for backend in backends)
