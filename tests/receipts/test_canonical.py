from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.receipts import canonical, digest, parse, token_digest
from tests.tiers import examples

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# A double between 2**53 and 1e21 is written with more digits than it has, which are read as an integer.
_FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda one: not 2**53 < abs(one) < 1e21)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | _FLOATS | _TEXTS
JSON_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4), max_leaves=12
)


@examples(1000)
@given(JSON_VALUES)
def test_it_is_the_same_value(value: Any) -> None:
    assert _numbers(parse(canonical(value))) == _numbers(value)


@examples(1000)
@given(JSON_VALUES, st.randoms(use_true_random=False), st.booleans())
def test_it_does_not_depend_on_the_spelling(value: Any, rng: Any, ascii: bool) -> None:
    spelled = json.dumps(_shuffled(value, rng), ensure_ascii=ascii, indent=rng.choice([None, 1]))
    assert canonical(parse(spelled)) == canonical(value)


@examples(500)
@given(JSON_VALUES, JSON_VALUES)
def test_two_values_have_two_forms(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (_numbers(one) == _numbers(other))


@examples(1000)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_its_value_and_has_no_needless_digit(value: float) -> None:
    text = canonical(value).decode()
    assert float(text) == value
    assert "E" not in text
    assert not text.endswith(".0")
    digits = repr(value).partition("e")[0].replace(".", "").replace("-", "").strip("0")
    assert text.partition("e")[0].replace(".", "").replace("-", "").strip("0") == digits


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # Of RFC 8785, appendix B.
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (999999999999999700000.0, "999999999999999700000"),
        (1e21, "1e+21"),
        (333333333.3333332, "333333333.3333332"),
        (0.000001, "0.000001"),
        (1e-7, "1e-7"),
        (-0.0, "0"),
        (1.0, "1"),
        (2**64 - 1, "18446744073709551615"),
        ("\u20ac$\u000f\nA'B\"\\\\\"/", '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'),
        ({"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "ö": 7},
         '{"\\r":2,"1":4,"\x80":6,"ö":7,"€":1,"😀":5,"\ufb33":3}'),
    ],
)  # fmt: skip
def test_known_forms(value: Any, text: str) -> None:
    assert canonical(value).decode() == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "\ud800", {1: 2}, {1, 2}, b"a"])
def test_what_json_cannot_hold(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 1}', "twice"),
        ('{"a": {"b": 1, "\\u0062": 2}}', "'b' twice"),
        ("[NaN]", "NaN"),
        ("[Infinity]", "Infinity"),
        ("1" * 5000, "digits"),
        ("[" * 100_000, "deep"),
        ("{", "Expecting"),
        ("", "Expecting"),
    ],
)
def test_strict_reading(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text)


def test_deep_values() -> None:
    value: Any = []
    for _ in range(1000):
        value = [value]
    with pytest.raises(ValueError, match="deep"):
        digest(value)


def test_tokens() -> None:
    assert token_digest([]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert token_digest([1, 2]) != token_digest([2, 1])
    for wrong in ([2**31], [1.5], ["a"]):
        with pytest.raises(ValueError, match="token id"):
            token_digest(wrong)  # type: ignore[arg-type]


def _numbers(value: Any) -> Any:
    """Python has one number for 1, 1.0 and True; JSON has one for the first two."""
    match value:
        case bool():
            return ("bool", value)
        case list():
            return [_numbers(item) for item in value]
        case dict():
            return {name: _numbers(item) for name, item in value.items()}
    return value


def _shuffled(value: Any, rng: Any) -> Any:
    if isinstance(value, dict):
        names = list(value)
        rng.shuffle(names)
        return {name: _shuffled(value[name], rng) for name in names}
    return [_shuffled(item, rng) for item in value] if isinstance(value, list) else value
