from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from paddock.receipts import Receipt, compare, first_difference, first_place, token_digest
from tests.receipts.samples import reply
from tests.tiers import examples


def _receipt(tokens: list[int], **identity: Any) -> Receipt:
    given = reply("a", tokens)["receipt"]
    return msgspec.convert(given | {"identity": given["identity"] | identity}, Receipt)


@examples(1000)
@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_the_first_token_that_differs(one: list[int], other: list[int]) -> None:
    found = compare(_receipt(one), _receipt(other))
    assert found.is_identical == (one == other)
    for difference in found.answers:
        at = difference.token
        assert at is not None
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


@examples(1000)
@given(st.binary(), st.binary())
def test_the_first_byte_that_differs(one: bytes, other: bytes) -> None:
    found = first_difference(one, other)
    assert (found is None) == (one == other)
    if found is not None:
        assert found.at == first_place(one, other)
        assert one[: found.at] == other[: found.at]
        assert one[found.at : found.at + 1] != other[found.at : found.at + 1]


def test_what_differs_in_the_identity() -> None:
    here = _receipt(
        [1, 2],
        model=[{"name": "a.gguf", "size": 98362432, "sha256": "ef" * 32}],
        library={"version": "0.5.0", "commit": "", "build_id": "10", "compiler": "GCC", "features": ["AVX", "AVX512"]},
        options={"n_ubatch": 512, "flash_attn": "off", "tensor_split": [1]},
        fingerprint="fp_other",
    )
    found = compare(_receipt([1, 2]), here)
    assert found.is_identical
    assert [str(each) for each in found.identity] == [
        f"model[0].sha256: {'ab' * 32} there, {'ef' * 32} here",
        "library.version: 0.4.1 there, 0.5.0 here",
        "library.build_id: 09 there, 10 here",
        "library.features: FMA there, AVX512 here",
        "options.flash_attn: on there, off here",
        "options.tensor_split: none there, 1 here",
    ]


def test_other_differences() -> None:
    there, here = _receipt([1, 2]), _receipt([1, 2, 3])
    assert [str(each) for each in compare(there, here).answers] == [
        "answer 0 differs at token 2: the end there, 3 here"
    ]
    here = _receipt([1, 2])
    here.answers[0].prompt_sha256 = token_digest([])
    here.answers[0].text_sha256 = "00" * 32
    here.answers[0].finish_reason = "length"
    assert [each.what for each in compare(there, here).answers] == ["prompt", "text", "finish_reason"]
    here.answers.append(here.answers[0])
    assert compare(there, here).answers[0].what == "number"
