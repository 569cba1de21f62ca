"""What llama-server says about a model and its sampling defaults, and what this server says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests import tiny_models as tiny
from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server

_SAMPLING: dict[str, float | str] = {
    "temp": 0.7,
    "top_k": 11,
    "top_p": "0.5",
    "min_p": 0.123456789,
    "penalty_last_n": -1,
    "penalty_repeat": 1.1,
    "sequence": "top-k;TEMP;unknown",
    "mirostat": "x",
    "mirostat_tau": 4,
    "xtc_probability": 0.25,
}
_FIELDS = (
    *("temperature", "top_k", "top_p", "min_p", "repeat_last_n", "repeat_penalty", "samplers", "mirostat"),
    *("mirostat_tau", "mirostat_eta", "xtc_probability", "xtc_threshold"),
)


def test_a_model_is_described_as_llama_server_does(tmp_path: Path) -> None:
    tiny.llama(tmp_path / "m.gguf", layers=1, sampling=_SAMPLING)
    options = ("-c", "512", "-np", "2", "-a", "a,b", "--tags", "y,x", "--top-k", "5")
    with (
        LlamaServer(llama_server_binary(), tmp_path / "m.gguf", *options) as theirs,
        Server("-m", str(tmp_path / "m.gguf"), *options, lazy=False) as ours,
    ):
        ours.chat("a", max_tokens=1)
        their_card, our_card = (_card(url) for url in (theirs.url, ours.url))
        their_defaults, our_defaults = (_defaults(url) for url in (theirs.url, ours.url))
    assert our_defaults == their_defaults
    assert (our_card["id"], our_card["tags"]) == (their_card["id"], their_card["tags"]) == ("a", ["x", "y"])
    assert their_card.keys() <= our_card.keys()
    size = their_card["meta"].pop("size")  # of the tensors; ours is the size of the file
    assert 0 < size < our_card["meta"]["size"]
    assert {name: our_card["meta"][name] for name in their_card["meta"]} == their_card["meta"]


def _card(url: str) -> dict[str, Any]:
    card: dict[str, Any] = httpx.get(f"{url}/v1/models", timeout=200).json()["data"][0]
    return card


def _defaults(url: str) -> dict[str, Any]:
    params = httpx.get(f"{url}/props", timeout=200).json()["default_generation_settings"]["params"]
    return {name: round(params[name], 5) if isinstance(params[name], float) else params[name] for name in _FIELDS}
