"""`memory_limit` limits the memory of workers including prefixes, which models share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import psutil
import pytest

from tests import tiny_models as tiny
from tests.server import Server, wait_for
from tests.tiers import full

pytestmark = full

MIB = 1 << 20
LIMIT = 200 * MIB


def _own(pid: int) -> int:
    """The anonymous memory of a process. The kernel can drop pages of files, such as a model's."""
    memory = psutil.Process(pid).memory_info()
    return memory.rss - memory.shared


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells pages of files from others")
def test_a_worker_stays_below_the_limit(tmp_path: Path) -> None:
    tiny.llama(tmp_path / "deep.gguf", layers=96)  # 24 KiB of keys and values per token, and little computation
    options = ("-c", "2048", "-np", "1", "-kvu", "--memory-limit", str(LIMIT), "--cache-ram", "4096")
    with Server("-m", str(tmp_path / "deep.gguf"), *options) as server:
        random, highest, prompts = Random(1), 0, 0
        for _ in range(6):
            text = "".join(random.choices("abcdefghijklmnop", k=1500))
            answer = server.client.post("/completion", json={"prompt": text, "n_predict": 1}).json()
            prompts += answer["tokens_evaluated"]
            highest = max(highest, *map(_own, server.workers()))
        assert prompts * 24 * 1024 > LIMIT * 3 / 4, "more was computed than fits the limit"
        assert highest <= LIMIT
        state = server.client.get("/admin/status").json()
        (model,) = state["models"]
        assert state["memory_limit"] == {"host": LIMIT}
        assert 16 * MIB < model["prefix_memory"] <= model["prefix_memory_limit"] < LIMIT
        assert model["prefix_memory"] < model["memory"]["host"] <= LIMIT, "the status includes the cache"
        assert "paddock_prefix_evictions_total" in server.client.get("/metrics").text


def test_models_share_the_memory_for_prefixes(tmp_path: Path) -> None:
    models = {"a": {"path": "fake:"}, "b": {"path": "fake:"}, "small": {"path": "fake:", "cache_ram": 1}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_manager": {"models": models, "cache_ram": 64}}))

    def shares() -> dict[str, int]:
        state = server.client.get("/admin/status").json()
        assert state["cache_ram"] == 64 * MIB
        return {model["name"]: model["prefix_memory_limit"] // MIB for model in state["models"]}

    with Server("--config", str(config)) as server:
        server.chat("say: hello", model="a")
        wait_for(lambda: shares() == {"a": 64, "b": 0, "small": 0}, 10, "the only share")
        server.chat("say: hello", model="small")
        server.chat("say: hello", model="b")
        wait_for(lambda: shares() == {"a": 31, "b": 31, "small": 1}, 10, "the shares of all")
        server.client.post("/admin/unload", json={"model": "b"})
        wait_for(lambda: shares() == {"a": 63, "b": 0, "small": 1}, 10, "a larger share")
