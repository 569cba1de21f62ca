"""Which of the libraries that `paddock build` made can be used on a machine."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.libraries import (
    IDENTITY,
    PINNED,
    Cpu,
    Identity,
    Source,
    cache_folder,
    list_builds,
    this_cpu,
    usable_builds,
)
from paddock.libraries.builds import mismatch
from paddock.libraries.cpu import read_cpu

_X86 = Cpu("x86_64", "Xeon", ("avx", "avx2", "avx512f", "fma"))
_OLDER = Cpu("x86_64", "Core", ("avx", "avx2", "fma"))
_FLAGS = st.sets(st.sampled_from(["avx", "avx2", "avx512f", "amx_int8", "fma", "f16c"]), min_size=1)


def _identity(cpu: Cpu = _X86, source: Source = PINNED, built_at: float = 1.0) -> Identity:
    return Identity(source, (), ("-DGGML_NATIVE=ON",), "c++ 12.2", cpu, built_at)


def _put(folder: Path, name: str, identity: Identity) -> Path:
    build = folder / "builds" / name
    build.mkdir(parents=True)
    (build / IDENTITY).write_bytes(msgspec.json.encode(identity))
    return build


def test_a_build_of_this_machine_is_used() -> None:
    assert mismatch(_identity(), _X86) is None


def test_a_build_for_another_cpu_names_what_is_missing() -> None:
    assert mismatch(_identity(), _OLDER) == "it was built for another CPU: this one does not have avx512f"
    assert mismatch(_identity(_OLDER), _X86) is None, "a CPU that has more runs it"
    assert mismatch(_identity(), Cpu("aarch64")) == "it was built for x86_64, and this machine is aarch64"


def test_without_known_features_the_model_must_be_the_same() -> None:
    assert mismatch(_identity(Cpu("arm64", "Apple M2")), Cpu("arm64", "Apple M2")) is None
    problem = mismatch(_identity(Cpu("arm64", "Apple M4")), Cpu("arm64", "Apple M2"))
    assert problem == "it was built for another CPU (Apple M4), and this one is Apple M2"


def test_a_build_of_another_source_is_not_used() -> None:
    older = Source("llama-cpp-python", "0.3.1", "0" * 64)
    problem = mismatch(_identity(source=older), _X86)
    assert problem == f"it was built from llama-cpp-python 0.3.1, and this version of Paddock uses {PINNED}"
    changed = Source(PINNED.name, PINNED.version, "0" * 64)
    assert mismatch(_identity(source=changed), _X86) is not None, "the same version with other bytes"


@given(_FLAGS, _FLAGS)
def test_a_build_is_used_exactly_where_no_instruction_is_missing(there: set[str], here: set[str]) -> None:
    built, cpu = Cpu("x86_64", "a", tuple(sorted(there))), Cpu("x86_64", "b", tuple(sorted(here)))
    assert (mismatch(_identity(built), cpu) is None) == (there <= here)


def test_the_latest_build_comes_first(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert usable_builds(environment) == []
    folder = cache_folder(environment)
    first, last, middle = (_put(folder, name, _identity(this_cpu(), built_at=at)) for name, at in zip("abc", (1, 9, 5)))  # noqa: B905
    other = _put(folder, "other", _identity(Cpu("pdp11"), built_at=20))
    assert usable_builds(environment) == [last, middle, first]
    assert [build.folder for build in list_builds(folder, this_cpu())] == [other, last, middle, first]


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"source": 1}', b"\xff"])
def test_a_folder_without_a_valid_identity_is_no_build(tmp_path: Path, content: bytes | None) -> None:
    folder = cache_folder({"XDG_CACHE_HOME": str(tmp_path)})
    build = _put(folder, "damaged", _identity(this_cpu()))
    if content is None:
        (build / IDENTITY).unlink()
    else:
        (build / IDENTITY).write_bytes(content)
    assert usable_builds({"XDG_CACHE_HOME": str(tmp_path)}) == []
    [found] = list_builds(folder, this_cpu())
    assert found.identity is None and found.problem is not None and IDENTITY in found.problem


def test_features_of_the_cpu_are_those_that_compilers_use() -> None:
    lines = ["processor\t: 0\n", "model name\t: Xeon\n", "flags\t\t: fpu ibrs smep sme avx2 fma avx512_vnni\n", "\n"]
    lines += ["processor\t: 1\n", "flags\t\t: amx_int8\n"]
    assert read_cpu("x86_64", lines) == Cpu("x86_64", "Xeon", ("avx2", "avx512_vnni", "fma"))
    arm = ["processor\t: 0\n", "Features\t: fp asimd asimddp cpuid i8mm\n", "CPU implementer\t: 0x41\n"]
    arm += ["CPU part\t: 0xd0c\n"]
    assert read_cpu("aarch64", arm) == Cpu(
        "aarch64", "CPU implementer 0x41 CPU part 0xd0c", ("asimd", "asimddp", "i8mm")
    )
    assert read_cpu("riscv64", []) == Cpu("riscv64")


def test_the_pinned_source_is_the_version_of_the_constraints() -> None:
    constraints = (Path(__file__).parents[2] / "constraints.txt").read_text("utf-8")
    found = re.search(rf"^{re.escape(PINNED.name)}==(.*)$", constraints, re.MULTILINE)
    assert found is None or found[1] == PINNED.version
