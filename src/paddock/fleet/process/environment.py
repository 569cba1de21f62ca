"""What a worker finds around it, and questions that one is started for alone: the answers are native code's."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from paddock.types import EngineOptions

_GPU_BACKENDS = ("cuda", "hip", "metal", "musa", "opencl", "sycl", "vulkan")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")
"""What tells the backends which devices there are."""
_INHERITED = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|TZ|TMPDIR|MALLOC_.*|LC_.*|PYTHON.*|LD_LIBRARY_PATH|LD_PRELOAD"
    "|OMP_.*|GOMP_.*|KMP_.*|MKL_.*|OPENBLAS_.*|NUMEXPR_.*|RAYON_.*"
    "|GGML_.*|LLAMA_.*|CUDA_.*|CUBLAS_.*|NVIDIA_.*|NCCL_.*|HIP_.*|ROCR_.*|ROCM_.*|HSA_.*|AMD_.*|GPU_.*|VK_.*"
    "|MESA_.*|ONEAPI_.*|SYCL_.*|ZE_.*|XDG_RUNTIME_DIR|XDG_CACHE_HOME|XDG_DATA_DIRS|DYLD_.*|COVERAGE_.*|PADDOCK_CHECK_CACHE"
)
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")
"""Whatever else the name says: llama-server's own settings, for one, have LLAMA_API_KEY and LLAMA_ARG_HF_TOKEN."""


def environment(options: EngineOptions) -> dict[str, str]:
    """What a worker finds in its environment, unless the user's says otherwise."""
    environment = {
        # numpy's BLAS, which is not used here, would start a thread for each core with the first import.
        "OPENBLAS_NUM_THREADS": "1",
    }
    if options.n_threads >= (os.cpu_count() or 1) > 1:
        # A thread that spins while it waits for one on the same core waits long. When there is a thread to each core
        # they are kept apart, so that a busy neighbour costs a share and not a collapse (docs/lab.md).
        environment["OMP_PROC_BIND"] = "true"
    if has_cuda():
        # llama.cpp's CUDA library brings some of libstdc++ along; unless the real one is there first, loading crashes.
        environment["LD_PRELOAD"] = "libstdc++.so.6"
    seen = dict.fromkeys(_VISIBLE, options.devices) if options.devices else {}
    return environment | inherited(os.environ) | seen


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What native code and Python are configured by. Nothing else reaches a worker: no key, no token, no setting of the
    server's.
    """
    return {
        name: value
        for name, value in environ.items()
        if _INHERITED.fullmatch(name) and not _SECRET.search(name.upper())
    }


def has_cuda() -> bool:
    """Whether the llama.cpp that workers load was built for CUDA. It is not imported here, only looked at."""
    return _built_for("cuda")


def has_gpu() -> bool:
    """Whether it was built for a GPU of any kind."""
    return _built_for(*_GPU_BACKENDS)


def _built_for(*backends: str) -> bool:
    folders = [Path(path) for path in [os.environ.get("LLAMA_CPP_LIB_PATH")] if path]
    spec = importlib.util.find_spec("llama_cpp")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "lib")
    return any(list(folder.glob(f"libggml-{backend}.*")) for folder in folders for backend in backends)


def ask_native(question: str, *, within: float) -> subprocess.CompletedProcess[bytes]:
    """Run a module of the worker's that writes its answer to its output, in an environment like a worker's."""
    return subprocess.run(
        [sys.executable, "-P", "-m", f"paddock.worker.{question}"], env=environment(EngineOptions()),
        stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=within,
    )  # fmt: skip
