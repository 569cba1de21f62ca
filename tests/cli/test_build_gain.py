"""What a build would gain on a machine, and how two libraries are compared."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.cli.doctor.library import check_library, check_speed
from paddock.cli.native import comparison
from paddock.cli.native.checking import Speed, measure_speed
from paddock.cli.native.checking import check_library as try_library
from paddock.cli.native.comparison import Comparison, load, ratios, save
from paddock.cli.native.gain import INSTRUCTIONS, PREBUILT_FEATURES, build_command, find_hint, hint, unused
from paddock.cli.native.job import State
from paddock.cli.native.report import build_line, cpu_line, gain_line, library_line, state_line
from paddock.fleet.process.native import Build as Native
from paddock.libraries import BUILT, PINNED, PREBUILT, Build, Cpu, Found, Identity, candidates, this_cpu
from tests.cli.findings import worst

_AVX512 = Cpu("x86_64", "Xeon", ("avx", "avx2", "avx512_vnni", "avx512f", "bmi2", "f16c", "fma", "pni", "ssse3"))
_AVX2 = Cpu("x86_64", "Core", ("avx", "avx2", "bmi2", "f16c", "fma", "pni", "ssse3"))
_ARM = Cpu("aarch64", "N1", ("asimd", "asimddp", "i8mm"))
_FASTER = Comparison(_AVX512, str(PINNED), PREBUILT, "demo", 2, 1.62, 1.08, 1.0)
_EQUAL = msgspec.structs.replace(_FASTER, prompt=1.02, stream=0.99)
_SLOWER = msgspec.structs.replace(_FASTER, prompt=0.7)


def _hint(cpu: Cpu, measured: Comparison | None = None, *, origin: str = PREBUILT, compiler: bool = True) -> str | None:
    return hint(origin, cpu, measured, has_compiler=compiler, command="make native")


def test_the_hint_names_what_a_build_would_use() -> None:
    expected = "a library compiled for this CPU may be faster, by AVX512, AVX512_VNNI. `make native` makes one"
    assert _hint(_AVX512) == f"{expected} in about fifteen minutes"
    assert "by DOTPROD, MATMUL_INT8" in (_hint(_ARM) or "")


def test_the_hint_has_figures_once_they_were_measured() -> None:
    found = _hint(_AVX512, _FASTER)
    assert found is not None and "prompts 1.62 times, one stream 1.08 times as fast, by AVX512" in found


def test_no_hint_where_nothing_is_gained() -> None:
    assert _hint(_AVX2) is None, "the prebuilt library uses all of it"
    assert _hint(_AVX512, _EQUAL) is None, "measured"
    assert _hint(_AVX512, compiler=False) is None
    assert _hint(_AVX512, origin=BUILT) is None
    assert _hint(_AVX512, origin="PADDOCK_LIBLLAMA") is None, "the user chose it"


def test_in_a_clone_the_command_is_of_make(tmp_path: Path) -> None:
    assert build_command(tmp_path / ".venv") == "paddock build"
    (tmp_path / "Makefile").touch()
    assert build_command(tmp_path / ".venv") == "make native"


@pytest.mark.skipif(sys.platform != "linux", reason="the features of the prebuilt library are known on Linux")
def test_the_hint_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path / name)]
        return spec if (tmp_path / name).exists() else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path)}
    (tmp_path / "xllamacpp").mkdir()
    (tmp_path / "xllamacpp" / "xllamacpp.abi3.so").touch()
    assert find_hint(environment) is None, "there is no compiler"
    (tmp_path / "c++").touch(mode=0o755)
    cpu = this_cpu()
    assert find_hint(environment) == hint(PREBUILT, cpu, None, has_compiler=True, command=build_command())
    (tmp_path / "cache" / "paddock" / "libllama").mkdir(parents=True)
    save(tmp_path / "cache" / "paddock" / "libllama", msgspec.structs.replace(_EQUAL, cpu=cpu))
    assert find_hint(environment) is None, "nothing is gained, as measured"
    assert find_hint({**environment, "PADDOCK_LIBLLAMA": str(tmp_path)}) is None


@pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("xllamacpp") is None, reason="there is no prebuilt library"
)
def test_the_prebuilt_library_uses_what_the_hint_assumes() -> None:
    prebuilt = next(found for found in candidates({}) if found.origin == PREBUILT)
    found = try_library(prebuilt.path)
    assert found.problem == ""
    assert {name for name in found.features if name in INSTRUCTIONS} == set(PREBUILT_FEATURES[this_cpu().machine])


@given(st.sets(st.sampled_from(sorted(INSTRUCTIONS))), st.sets(st.sampled_from(sorted(INSTRUCTIONS.values()))))
def test_unused_instructions_are_in_the_cpu_and_not_in_the_library(features: set[str], flags: set[str]) -> None:
    found = unused(features, flags)
    assert {INSTRUCTIONS[name] for name in found} == flags - {INSTRUCTIONS[name] for name in features}


# ── measured ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_round_that_another_program_slowed_down_does_not_count() -> None:
    rounds = [(Speed(200, 20), Speed(100, 20)), (Speed(20, 2), Speed(10, 2)), (Speed(20, 2), Speed(100, 20))]
    assert ratios(rounds) == (2.0, 1.0)


def test_only_rounds_count_in_which_both_had_the_cpu() -> None:
    good, disturbed = (Speed(30, 10, 0.97), Speed(20, 10, 0.95)), (Speed(9, 1, 0.3), Speed(20, 10, 0.97))
    assert ratios([disturbed, disturbed, good]) == (1.5, 1.0)
    with pytest.raises(comparison.MachineBusy, match="30% of it was left"):
        ratios([disturbed, disturbed])


def test_both_libraries_are_measured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(path: Path, _model: Path, threads: int) -> Speed:
        asked.append(path.name)
        return Speed(30, 10) if path.name == "ours" else Speed(20, 10)

    monkeypatch.setattr(comparison, "measure_speed", measure)
    assert comparison.compare(Path("ours"), Path("theirs"), Path("m"), 2) == (1.5, 1.0)
    assert asked == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_figures_are_kept_for_the_cpu_that_they_were_measured_on(tmp_path: Path) -> None:
    assert load(tmp_path, _AVX512) is None
    save(tmp_path, _FASTER)
    assert load(tmp_path, _AVX512) == _FASTER
    assert load(tmp_path, _ARM) is None
    (tmp_path / "speed.json").write_text("{")
    assert load(tmp_path, _AVX512) is None


def test_a_library_is_measured_in_a_process(tiny_models: dict[str, Path]) -> None:
    library = next(candidates({})).path
    found = measure_speed(library, tiny_models["llama"], 1)
    assert found.prompt > 0 and found.stream > 0 and found.cpu_share > 0


# ── what people read ─────────────────────────────────────────────────────────────────────────────────────────────────

_STATE = State("compile", 7, 60.0, percent=42, is_running=True)


def test_the_report() -> None:
    used, native = Found(Path("/lib/libllama.so"), PREBUILT), Native(features=("AVX2", "OPENMP"))
    assert library_line(used, native) == "/lib/libllama.so (xllamacpp) uses AVX2"
    assert library_line(None, native) == "there is none"
    assert "cannot be used: no" in library_line(used, Native(failure="no"))
    avx512 = Native(features=tuple(PREBUILT_FEATURES["x86_64"]))
    assert cpu_line(_AVX512, avx512) == "Xeon also has AVX512, AVX512_VNNI"
    assert cpu_line(_AVX2, avx512) == "Core: the library uses all of it"
    assert cpu_line(Cpu("arm64", "Apple M2"), native) == "Apple M2: its instruction sets are not known"
    assert "1.62 times" in gain_line(_FASTER, ["AVX512"], "make native")
    assert "not measured yet" in gain_line(None, ["AVX512"], "make native")
    assert "the same instructions" in gain_line(None, [], "make native")
    identity = Identity(PINNED, ("cuda",), (), "c++ 12.2", _AVX512, 1.0)
    assert build_line(Build(Path("/b"), identity, None)) == f"/b: {PINNED} for cuda, c++ 12.2"
    assert build_line(Build(Path("/b"), identity, "why")).endswith("is not used: why")
    assert build_line(Build(Path("/b"), None, "why")) == "/b is not used: why"


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (_STATE, "one is running for 2 minutes (process 7): compile 42 %; log: L"),
        (State("finished", 7, 60.0), "the last one finished"),
        (State("failed", 7, 60.0, message="no"), "the last one failed: no; log: L"),
        (State("cancelled", 7, 60.0), "the last one was cancelled; log: L"),
    ],
)
def test_the_state_of_a_build(state: State, line: str) -> None:
    assert state_line(state, 180.0, "L") == line


def test_the_doctor_knows_builds() -> None:
    assert not list(check_library([], None))
    level, text = worst(check_library([Build(Path("/b"), None, "it is damaged")], None))
    assert level == "warning" and "/b, which `paddock build` made, is not used: it is damaged" in text
    assert "a build is running (process 7): compile 42 %" in worst(check_library([], _STATE))[1]
    assert worst(check_library([], State("failed", 7, 60.0, message="no")))[0] == "warning"


@pytest.mark.parametrize(
    ("measured", "origin", "level"),
    [
        (_FASTER, BUILT, "ok"),
        (_FASTER, PREBUILT, "warning"),
        (_EQUAL, PREBUILT, "ok"),
        (_EQUAL, BUILT, "ok"),
        (_SLOWER, BUILT, "warning"),
    ],
)
def test_the_doctor_says_which_library_is_faster(measured: Comparison, origin: str, level: str) -> None:
    assert worst([check_speed(measured, origin)])[0] == level
