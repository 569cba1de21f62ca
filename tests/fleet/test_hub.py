from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import PullFailed
from paddock.fleet.catalogue.hub import Source, choose

_FILES = [
    "README.md",
    "Horse-8B-BF16-00001-of-00002.gguf",
    "Horse-8B-BF16-00002-of-00002.gguf",
    "Horse-8B-IQ4_XS.gguf",
    "Horse-8B-Q4_K_M.gguf",
    "Horse-8B-Q4_K_S.gguf",
    "Horse-8B-UD-Q4_K_XL.gguf",
    "Q8_0/Horse-8B-00001-of-00002.gguf",
    "Q8_0/Horse-8B-00002-of-00002.gguf",
    "mmproj-Horse-8B-F16.gguf",
]


def test_requested_quantisation() -> None:
    assert choose(_FILES, None) == ["Horse-8B-Q4_K_M.gguf"]
    assert choose(_FILES, "q4_k_s") == ["Horse-8B-Q4_K_S.gguf"]
    assert choose(_FILES, "UD-Q4_K_XL") == ["Horse-8B-UD-Q4_K_XL.gguf"]
    assert choose(_FILES, "bf16") == _FILES[1:3]
    assert choose(_FILES, "Q8_0") == _FILES[7:9]
    assert choose(["horse.q4_0.gguf"], "Q4_0") == ["horse.q4_0.gguf"]


def test_default_quantisation() -> None:
    assert choose(["a-Q2_K.gguf", "a-Q8_0.gguf"], None) == ["a-Q8_0.gguf"]
    assert choose(["b.gguf", "a.gguf"], None) == ["a.gguf"]


def test_missing_quantisation() -> None:
    with pytest.raises(PullFailed, match=r"no Q4_K; it has BF16, IQ4_XS, Q4_K_M, Q4_K_S, Q8_0, UD-Q4_K_XL"):
        choose(_FILES, "Q4_K")
    with pytest.raises(PullFailed, match="no XS; it has"):
        choose(_FILES, "XS")
    for none in ([], ["README.md", "model.safetensors"], ["mmproj-F16.gguf"]):
        with pytest.raises(PullFailed, match="no GGUF"):
            choose(none, None)


@given(st.lists(st.sampled_from(_FILES)), st.none() | st.sampled_from(["Q4_K_M", "Q8_0", "F16", ".*", "("]))
def test_the_choice_is_one_whole_model(names: list[str], quantisation: str | None) -> None:
    try:
        chosen = choose(names, quantisation)
    except PullFailed as error:
        assert error.message
        return
    assert set(chosen) <= set(names)
    assert all(name.endswith(".gguf") and "mmproj" not in name for name in chosen)


def test_parse_source() -> None:
    assert Source.parse("ggml-org/Horse-GGUF") == Source("ggml-org/Horse-GGUF")
    assert Source.parse("ggml-org/Horse-GGUF:q8_0") == Source("ggml-org/Horse-GGUF", "q8_0")
    assert Source.parse("https://huggingface.co/a/b.c") == Source("a/b.c")
    assert Source.parse("a/b@refs/pr/1:Q8_0") == Source("a/b", "Q8_0", "refs/pr/1")
    for nonsense in ("a/b@", "a/b@../x", "a/b@x y", "horse", "a/b/c", "../../etc", "a/..", "", "a/", "/b", "a b/c"):
        with pytest.raises(PullFailed, match="OWNER/NAME"):
            Source.parse(nonsense)
