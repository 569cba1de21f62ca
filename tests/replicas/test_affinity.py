"""The cache hit rate of several replicas is nearly that of a single large one."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.replicas.test_conformance import settings
from tests.server import Server, wait_for
from tests.tiers import full

pytestmark = full

CONVERSATIONS, TURNS, REPLICAS = 40, 5, 4


def test_hit_rate_of_four_replicas_matches_a_single_one(tmp_path: Path) -> None:
    replicas: dict[str, Any] = {name: {"n_threads": 1} for name in "abcd"[:REPLICAS]}
    several = {"path": "fake:", "replicas": replicas, "preload": True, "parallel": 4}
    single = {"path": "fake:", "preload": True, "parallel": 4 * REPLICAS}
    (tmp_path / "several").mkdir()
    (tmp_path / "single").mkdir()
    with Server(*settings(tmp_path / "several", several)) as server:
        wait_for(lambda: all(one["fingerprint"] for one in _replicas(server)), 60, "all replicas")
        among_several = _hit_rate(server)
    with Server(*settings(tmp_path / "single", single)) as server:
        alone = _hit_rate(server)
    # As many workers, but each request goes to the next: under names of their own, because a pool would not do that.
    apart = {name: {"path": "fake:", "preload": True, "parallel": 4} for name in replicas}
    (tmp_path / "apart.json").write_text(json.dumps({"model_manager": {"models": apart}}))
    with Server("--config", str(tmp_path / "apart.json")) as server:
        in_turn = _hit_rate(server, list(apart))
    assert alone > 0.5, "or there would be nothing to find"
    assert in_turn < among_several
    # Nine tenths and more (docs/lab.md); who is busy at which moment is not the same twice.
    assert among_several >= 0.8 * alone


def _replicas(server: Server) -> list[dict[str, Any]]:
    (model,) = server.client.get("/admin/status").json()["models"]
    replicas: list[dict[str, Any]] = model["replicas"]
    return replicas


def _hit_rate(server: Server, names: Sequence[str] = ("",)) -> float:
    """Of the tokens of all prompts, the share that was known; eight conversations at a time, in any order. Of several
    models each is asked in turn.
    """
    in_turn = itertools.cycle(names)
    random_ = random.Random(7)
    system = "".join(random_.choices("abcdefgh ", k=1200))
    conversations = [[{"role": "system", "content": system}] for _ in range(CONVERSATIONS)]
    known = read = 0
    with ThreadPoolExecutor(8) as pool:
        for _ in range(TURNS):
            random_.shuffle(conversations)
            for messages in conversations:
                messages.append({"role": "user", "content": "".join(random_.choices("ijklmnop ", k=800))})
            for messages, body in zip(
                conversations, pool.map(_answer, _bodies(server, conversations, in_turn)), strict=True
            ):
                messages.append(body["choices"][0]["message"])
                known += body["usage"]["prompt_tokens_details"]["cached_tokens"]
                read += body["usage"]["prompt_tokens"]
    return known / read


def _bodies(
    server: Server, conversations: list[list[dict[str, str]]], names: Iterator[str]
) -> Iterator[tuple[Server, dict[str, Any]]]:
    for messages, name in zip(conversations, names, strict=False):
        yield server, {"model": name, "messages": messages, "max_tokens": 8}


def _answer(asked: tuple[Server, dict[str, Any]]) -> dict[str, Any]:
    server, body = asked
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer
