"""Patterns for tensors mean here what they mean to libllama, which compiles them as C++ does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ModelSettings
from paddock.config.tensor_patterns import compiled, translate
from paddock.engine import open_engine
from paddock.errors import ModelLoadFailed
from paddock.fleet.catalogue.headers import read_header
from paddock.fleet.memory.estimate import estimate
from tests.options import engine_options

NAME = "blk.12.ffn_gate_exps.weight"
# Python refuses these, or reads them in another way.
_CPP_ONLY = {
    r"blk\.[[:digit:]]+\.ffn": True,
    r"[[:alpha:]]{3}\.1": True,
    r"\iblk": False,
    r"\gate": True,
    r"exps**": True,
    r"ffn_[^]ate": True,
    r"ffn[]": False,
    r"\x62lk": True,
    r"g\u0061te": True,
    r"\Zblk": False,
    r"a{1}}|blk": True,
}
_PYTHON_ONLY = [
    *(r"(?i)BLK", r"(?P<n>blk)", r"(?<=\.)ffn", r"a{,3}", r"[b", r"(blk", r"blk)", r"*", "a\\", r"\1"),
    *(r"a{2,1}", r"^*"),
]


@pytest.mark.parametrize(("pattern", "matches"), _CPP_ONLY.items())
def test_patterns_that_only_cpp_understands(pattern: str, matches: bool) -> None:
    assert bool(compiled(pattern).search(NAME)) == matches


@pytest.mark.parametrize("pattern", _PYTHON_ONLY)
def test_patterns_that_cpp_refuses(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        ModelSettings(override_tensor=[f"{pattern}=CPU"])


_COMMON = [r"blk", r"\.", r"\d+", "ffn_(up|gate)", "_exps", ".*", "[0-9]", "[^a-z]?", "$", "^"]


@given(st.lists(st.sampled_from(_COMMON), max_size=6))
def test_common_patterns_mean_what_python_means(parts: list[str]) -> None:
    pattern = "".join(parts)
    if re.search(r"[$^][*?+]|^[*+?]", pattern):
        return
    assert bool(compiled(pattern).search(NAME)) == bool(re.search(pattern, NAME))
    re.compile(translate(pattern))


@pytest.mark.parametrize("pattern", [*_CPP_ONLY, r"blk\.1\.ffn_(up|down)", r"blk\.(0|2)\..*weight$"])
def test_libllama_places_the_same_tensors(
    tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    header = read_header(tiny_models["experts"])
    options = engine_options(n_ctx=256, tensor_overrides=[(pattern, "CPU")], verbose=True)
    capsys.readouterr()
    open_engine(str(tiny_models["experts"]), options, lambda _: None).close()
    placed = set(re.findall(r"tensor (\S+) \(.*\) buffer type overridden to CPU", capsys.readouterr().err))
    assert placed == {tensor.name for tensor in header.tensors if compiled(pattern).search(tensor.name)}
    assert estimate(header, options, gpu=True).device.weights >= 0


@pytest.mark.parametrize("pattern", _PYTHON_ONLY)
def test_libllama_refuses_the_same_patterns(tiny_models: dict[str, Path], pattern: str) -> None:
    options = msgspec.structs.replace(engine_options(n_ctx=256), tensor_overrides=[(pattern, "CPU")])
    with pytest.raises(ModelLoadFailed):
        open_engine(str(tiny_models["experts"]), options, lambda _: None)


def test_the_first_pattern_counts(tiny_models: dict[str, Path]) -> None:
    header = read_header(tiny_models["experts"])

    def weights(*overrides: tuple[str, str]) -> int:
        return estimate(header, engine_options(tensor_overrides=list(overrides)), gpu=True).device.weights

    everything = weights()
    assert weights(("exps", "CUDA0"), ("ffn", "CPU")) > weights(("ffn", "CPU"), ("exps", "CUDA0"))
    assert weights(("exps", "CUDA0")) == everything
