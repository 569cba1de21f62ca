"""The paths that a worker may open. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from paddock.types import Sandbox
from paddock.worker.sandbox.landlock import DEVICE, READ, WRITE, Access, Right

# Files of programs and of the dynamic loader. Not all of /etc, which may contain the configuration with its API keys,
# and not all of /opt, /var or /home.
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/nix/store", "/gnu/store",
    "/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
    "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/os-release", "/etc/gai.conf",
)  # fmt: skip
_KERNEL = ("/proc", "/sys")
_PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_GPU_SYSTEM = ("/etc/OpenCL", "/etc/vulkan", "/etc/nvidia", "/etc/nvidia-container-runtime", "/run/opengl-driver")
_GPU_OPTIONAL = ("rocm*", "cuda*", "nvidia*", "amdgpu*", "intel*")
"""Below /opt."""
_GPU_DEVICES = ("nvidia*", "dri", "kfd", "dxg", "davinci*", "mali*")
"""Below /dev."""
_OWN_PROC = Right.READ_FILE | Right.READ_DIR | Right.WRITE_FILE | Right.TRUNCATE
_LIBRARY_VARIABLES = ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "ROCM_PATH", "HIP_PATH")


def accesses(
    sandbox: Sandbox,
    *,
    python: Sequence[str],
    environ: Mapping[str, str],
    home: Path,
    library: Sequence[Path] = (),
    root: Path = Path("/"),
) -> list[Access]:
    """`python` are the folders of the interpreter and of importable modules, `library` has the paths of libllama.
    `root` is for tests.
    """
    found = [
        *(Access(_below(root, path), READ) for path in (*_SYSTEM, *_KERNEL)),
        *(Access(_below(root, path), DEVICE) for path in _PLAIN_DEVICES),
        *(Access(path, READ) for path in _folders([*python, *map(str, library), *_variables(environ)])),
        *(Access(Path(os.path.realpath(path)), Right.READ_FILE) for path in sandbox.readable),
        *(Access(Path(os.path.realpath(path)), WRITE) for path in sandbox.writable),
    ]
    if sandbox.gpu:
        found += _gpu(environ, home, root)
    return found


def gpu_caches(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Folders in which drivers cache compiled code."""
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    cuda = Path(environ.get("CUDA_CACHE_PATH") or home / ".nv" / "ComputeCache")
    return [cuda, cache / "mesa_shader_cache", cache / "nvidia", cache / "AMD"]


def _gpu(environ: Mapping[str, str], home: Path, root: Path) -> Iterator[Access]:
    for path in _GPU_SYSTEM:
        yield Access(_below(root, path), READ)
    for pattern in _GPU_OPTIONAL:
        yield from (Access(path, READ) for path in sorted((root / "opt").glob(pattern)))
    for pattern in _GPU_DEVICES:
        yield from (Access(path, DEVICE) for path in sorted((root / "dev").glob(pattern)))
    # CUDA names its threads by opening /proc/self/task/*/comm for writing, and fails to start without it.
    yield Access(_below(root, "/proc/self"), _OWN_PROC)
    yield Access(_below(root, "/dev/shm"), WRITE)  # noqa: S108 (where drivers share memory)
    yield from (Access(path, WRITE) for path in gpu_caches(environ, home))


def _variables(environ: Mapping[str, str]) -> Iterator[str]:
    for name in _LIBRARY_VARIABLES:
        yield from environ.get(name, "").split(os.pathsep)


def _folders(paths: Iterable[str]) -> list[Path]:
    """Without duplicates, and without `/`, which a search path may contain by mistake."""
    found = {Path(os.path.realpath(path)) for path in paths if path}
    return sorted(path for path in found if path != Path("/"))


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
