from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from paddock.types import Sandbox
from paddock.worker.sandbox.landlock import DEVICE, READ, WRITE, Access, Right, rights_on, ruleset_for
from paddock.worker.sandbox.paths import accesses


def _accesses(sandbox: Sandbox, tmp_path: Path, **environ: str) -> dict[Path, Right]:
    found = accesses(
        sandbox, python=["/", "", str(tmp_path / "venv")], environ=environ, home=tmp_path / "home", root=tmp_path
    )
    return {access.path: access.rights for access in found}


def test_a_worker_may_read_its_model_but_no_other_file_of_the_folder(tmp_path: Path) -> None:
    model = tmp_path / "home" / "model.gguf"
    found = _accesses(Sandbox(readable=(str(model),), writable=(str(tmp_path / "slots"),)), tmp_path)
    assert found[model] == Right.READ_FILE
    assert found[tmp_path / "slots"] == WRITE
    assert found[tmp_path / "venv"] == READ
    assert not {Path("/"), tmp_path, tmp_path / "home", tmp_path / "etc", tmp_path / "dev"} & found.keys()
    writable = {path for path, rights in found.items() if rights & Right.MAKE_REG}
    assert writable == {tmp_path / "slots"}


def test_a_link_to_a_model_allows_its_target(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    blob.touch()
    link = tmp_path / "snapshots" / "model.gguf"
    link.parent.mkdir()
    link.symlink_to(blob)
    found = _accesses(Sandbox(readable=(str(link),)), tmp_path)
    assert blob in found
    assert link not in found


def test_with_a_gpu_its_devices_and_caches_are_allowed(tmp_path: Path) -> None:
    for name in ("dev/nvidia0", "dev/nvidia-uvm", "dev/sda", "opt/rocm-6/x", "opt/paddock/x"):
        (tmp_path / name).mkdir(parents=True)
    without, found = _accesses(Sandbox(), tmp_path), _accesses(Sandbox(gpu=True), tmp_path)
    assert found[tmp_path / "dev/nvidia0"] == found[tmp_path / "dev/nvidia-uvm"] == DEVICE
    assert found[tmp_path / "opt/rocm-6"] == READ
    assert found[tmp_path / "home/.nv/ComputeCache"] == WRITE
    assert not {tmp_path / "dev/sda", tmp_path / "opt/paddock"} & found.keys()
    assert not {tmp_path / "dev/nvidia0", tmp_path / "home/.nv/ComputeCache"} & without.keys()
    assert tmp_path / "elsewhere" in _accesses(Sandbox(gpu=True), tmp_path, CUDA_CACHE_PATH=str(tmp_path / "elsewhere"))


@given(st.integers(1, 12), st.integers(0, 2**16 - 1), st.booleans())
def test_the_kernel_gets_only_rights_that_it_supports(abi: int, rights: int, folder: bool) -> None:
    ruleset = ruleset_for(abi)
    known = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
    assert ruleset.files < 1 << known
    assert (ruleset.network == 0) == (abi < 4)
    assert (ruleset.scopes == 0) == (abi < 6)
    allowed = rights_on(Access(Path("/x"), Right(rights)), ruleset, folder=folder)
    assert allowed & ~ruleset.files == 0
    assert folder or not allowed & Right.READ_DIR
