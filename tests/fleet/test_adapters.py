"""Adapter files and lists of adapters."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidRequest
from paddock.fleet.catalogue.adapters import Adapter, default_adapters, fingerprint, parse_adapters, read_adapter
from paddock.fleet.catalogue.gguf import BrokenGGUF
from paddock.types import Adapters, ModelInfo
from tests import tiny_models

INFO = ModelInfo("x", 1, 1, 1, 1, 1, fingerprint="fp_model", adapters=("one", "other"))


def test_read_adapter(tiny_adapters: list[Path]) -> None:
    first = tiny_adapters[0]
    assert read_adapter(first, 0.5, architecture="llama") == Adapter(str(first), 0.5, task_name="task 1")


def test_invalid_adapter_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"

    def refusal() -> str:
        with pytest.raises(BrokenGGUF) as caught:
            read_adapter(file, 1.0, architecture="llama")
        assert str(file) in str(caught.value)
        return str(caught.value)

    assert "No such file" in refusal()
    file.mkdir()
    assert "directory" in refusal()
    file.rmdir()
    file.write_bytes(b"nonsense, but long enough to parse")
    assert "not with 'GGUF'" in refusal()
    tiny_models.llama(file)
    assert "general.type is None" in refusal()
    tiny_models.adapter(file, architecture="gemma3")
    assert "for the architecture 'gemma3', not 'llama'" in refusal()
    tiny_models.adapter(file, invocation=[1, 2])
    assert "aLoRA" in refusal()
    tiny_models.adapter(file)
    file.write_bytes(file.read_bytes()[:-2000])
    assert "truncated" in refusal()
    for adapter_type, alpha, why in (("control_vector", 1.0, "adapter.type"), ("lora", "much", "alpha")):
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, adapter_type)
        writer.add_key_value(gguf.Keys.Adapter.LORA_ALPHA, alpha, gguf.GGUFValueType.get_type(alpha))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert why in refusal()


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.0, -0.0, 0.5, 1.0, -2.0])), max_size=6))
def test_parse_adapters(listed: list[tuple[int, float]]) -> None:
    adapters = [Adapter(f"{number}", 1.0) for number in range(5)]
    numbers = [number for number, _ in listed]
    if max(numbers, default=0) < 5 and len(set(numbers)) == len(numbers):
        found = parse_adapters(adapters, listed, param="lora")
        assert found == parse_adapters(adapters, listed[::-1], param="lora")
        assert dict(found) == {number: scale for number, scale in listed if scale}
        assert list(found) == sorted(found)
    else:
        with pytest.raises(InvalidRequest) as caught:
            parse_adapters(adapters, listed, param="lora")
        place = next(at for at, number in enumerate(numbers) if number >= 5 or number in numbers[:at])
        assert caught.value.param == f"lora[{place}].id"


def test_active_adapters_change_the_fingerprint() -> None:
    sets: list[Adapters] = [(), ((0, 1.0),), ((0, 0.5),), ((1, 1.0),), ((0, 1.0), (1, 1.0))]
    prints = [fingerprint(INFO, acts) for acts in sets]
    assert prints[0] == "fp_model"
    assert len(set(prints)) == len(sets)
    assert default_adapters([Adapter("a", 0.0), Adapter("b", 0.5)]) == ((1, 0.5),)
