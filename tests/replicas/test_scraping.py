from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.replicas.scraping import busy, scraped
from paddock.replicas.shapes import engine_of

_LLAMA_SERVER = """
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 32
llamacpp:requests_processing 1
llamacpp:kv_cache_usage_ratio 0.25
process_open_fds 9
"""
_PADDOCK = """
llamacpp:tokens_predicted_total{engine="llama.cpp",model_id="a",pool="a",replica="0"} 3.0
llamacpp:tokens_predicted_total{engine="llama.cpp",model_id="a",pool="a",replica="1"} 4.0
llamacpp:tokens_predicted_total{engine="llama.cpp",model_id="b",pool="default",replica="0"} 50.0
llamacpp:n_tokens_max{model_id="a",replica="0"} 7
llamacpp:n_tokens_max{model_id="a",replica="1"} 5
"""


def test_llama_server() -> None:
    assert scraped(_LLAMA_SERVER, "a") == {
        "llamacpp:prompt_tokens_total": 32,
        "llamacpp:requests_processing": 1,
        "llamacpp:kv_cache_usage_ratio": 0.25,
    }


def test_paddock_with_several_models() -> None:
    assert scraped(_PADDOCK, "a") == {"llamacpp:tokens_predicted_total": 7, "llamacpp:n_tokens_max": 7}
    assert scraped(_PADDOCK, "b") == {"llamacpp:tokens_predicted_total": 50}


def test_busy_slots_without_metrics() -> None:
    assert busy({"llamacpp:requests_processing": 2, "llamacpp:requests_deferred": 3}, None) == 5
    assert busy({}, [True, False, True]) == 2
    assert busy({}, None) == 0


def test_engine_version() -> None:
    assert engine_of("paddock 0.1.0") == engine_of("paddock 0.1.0, fake") == ("paddock", "0.1.0")
    assert engine_of("b6000-abcdef") == ("llama.cpp", "b6000-abcdef")
    assert engine_of("") == ("llama.cpp", "unknown")


@given(st.text())
def test_any_page_is_parsed(page: str) -> None:
    scraped(page + "\nllamacpp:n_decode_total not-a-number\n", "a")
