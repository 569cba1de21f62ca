"""`general.sampling.*` in a header, as fields of requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.fleet.catalogue.sampling_metadata import sampling_defaults

_KEYS = [
    *("top_k", "penalty_last_n", "mirostat", "temp", "top_p", "min_p", "xtc_probability", "xtc_threshold"),
    *("penalty_repeat", "mirostat_tau", "mirostat_eta", "sequence", "unknown"),
]


def _read(**values: Any) -> dict[str, Any]:
    return sampling_defaults({f"general.sampling.{name}": value for name, value in values.items()})


def test_every_key_has_its_field() -> None:
    numbers = dict.fromkeys(_KEYS[:-2], 1)
    assert _read(**numbers) == {
        "top_k": 1,
        "repeat_last_n": 1,
        "mirostat": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "min_p": 1.0,
        "xtc_probability": 1.0,
        "xtc_threshold": 1.0,
        "repeat_penalty": 1.0,
        "mirostat_tau": 1.0,
        "mirostat_eta": 1.0,
    }


@pytest.mark.parametrize(
    ("value", "temperature"),
    [(0.699999988079071, 0.7), ("0.6", 0.6), (" .5x", 0.5), (2, 2.0), (-1.0, 0.0), ("1e-1", 0.1)],
)
def test_a_number_is_read_as_libllama_writes_it(value: Any, temperature: float) -> None:
    assert _read(temp=value) == {"temperature": temperature}


def test_a_value_beyond_a_limit_is_the_limit() -> None:
    assert _read(top_k=-5, top_p=1.5, min_p=-0.5, xtc_threshold=2) == {
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "xtc_threshold": 1.0,
    }


@pytest.mark.parametrize("value", ["warm", "", True, None])
def test_what_is_no_number_is_ignored(value: Any) -> None:
    assert _read(temp=value, top_k=value) == {}


def test_samplers_have_several_spellings_and_unknown_ones_are_left_out() -> None:
    assert _read(sequence="top-k;infill;TEMP;typ;minp") == {"samplers": ["top_k", "temperature", "typ_p", "min_p"]}


@given(st.dictionaries(st.sampled_from(_KEYS), st.none() | st.booleans() | st.integers() | st.floats() | st.text()))
def test_no_value_is_too_strange(values: dict[str, Any]) -> None:
    for field, value in _read(**values).items():
        assert isinstance(value, list if field == "samplers" else int | float)
