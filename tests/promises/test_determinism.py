"""Promise 7: deterministic means byte-exact: cold or warm cache, alone or in a batch, in any process."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server import Server
from tests.tiers import full

LONG = " ".join(f"Stable {n} holds {n + 3} horses and {n * 2} bales of hay." for n in range(12))
PROMPTS = [
    "Tell me about horses.",
    f"{LONG} How many horses are in stable 7?",
    f"{LONG} How many bales are in stable 9?",
    "Write a short poem about a paddock in the rain.",
    f"{LONG} Which stable is the largest?",
    "What is the capital of France?",
]


def _answer(server: Server, index: int, **options: object) -> str:
    body = server.chat(PROMPTS[index], seed=index, temperature=1.0, max_tokens=10, **options)
    content: str = body["choices"][0]["message"]["content"]
    return content


@pytest.fixture(scope="module", params=["tiny", pytest.param("demo", marks=full)])
def model(request: pytest.FixtureRequest, demo_model: Path, tiny_models: dict[str, Path]) -> Path:
    return demo_model if request.param == "demo" else tiny_models["llama"]


@pytest.fixture(scope="module")
def alone(model: Path) -> list[str]:
    """The answer to each prompt from a server without other requests and without a cache."""
    with Server("-m", str(model), "--deterministic", "-np", "3", "-c", "6144", "--cache-ram", "0") as server:
        return [_answer(server, index) for index in range(len(PROMPTS))]


def test_the_same_seed_gives_the_same_bytes_in_a_batch(model: Path, alone: list[str]) -> None:
    order = [index for index in range(len(PROMPTS)) for _ in range(2)]
    random.Random(3).shuffle(order)
    with Server("-m", str(model), "--deterministic", "-np", "3", "-c", "6144") as server:
        with ThreadPoolExecutor(5) as pool:
            together = list(pool.map(lambda index: _answer(server, index), order))
        assert together == [alone[index] for index in order]
        assert server.client.get("/props").json()["deterministic"]["together"] in (1, 2, 3)
        assert [_answer(server, index) for index in range(len(PROMPTS))] == alone, "warm"


def test_a_deterministic_request_among_others(model: Path) -> None:
    with Server("-m", str(model), "-np", "3", "-c", "6144", "--cache-ram", "0") as server:
        alone = [_answer(server, index, deterministic=True) for index in range(len(PROMPTS))]
    with Server("-m", str(model), "-np", "3", "-c", "6144") as server, ThreadPoolExecutor(4) as pool:
        others = [pool.submit(server.chat, f"{LONG} {n}", max_tokens=30, ignore_eos=True) for n in range(3)]
        for index in (1, 3, 4):
            assert _answer(server, index, deterministic=True) == alone[index]
        assert all(other.result() for other in others)


def test_deterministic_requests_in_a_unified_cache(model: Path) -> None:
    with Server("-m", str(model), "-kvu", "-np", "3", "-c", "6144") as server, ThreadPoolExecutor(4) as pool:
        first = [_answer(server, index, deterministic=True) for index in (1, 3)]
        others = [pool.submit(server.chat, f"{LONG} {n}", max_tokens=20) for n in range(3)]
        assert [_answer(server, index, deterministic=True) for index in (3, 1)] == first[::-1]
        assert all(other.result() for other in others)


def test_a_restored_slot_gives_the_same_bytes(model: Path, alone: list[str], tmp_path: Path) -> None:
    """On the server that saved it, and on another with more slots."""
    options = ("-m", str(model), "--deterministic", "--slot-save-path", str(tmp_path))
    file = {"filename": "stables.bin"}
    with Server(*options, "-np", "3", "-c", "6144") as server:
        assert _answer(server, 1, id_slot=2) == alone[1]
        saved = server.client.post("/slots/2?action=save", json=file).json()
        assert saved["n_saved"] >= 128
        assert server.client.post("/slots/2?action=erase").json()["n_erased"] == saved["n_saved"]
        assert server.client.post("/slots/0?action=restore", json=file).json()["n_restored"] == saved["n_saved"]
        assert [_answer(server, index) for index in (4, 1)] == [alone[4], alone[1]]
    with Server(*options, "-np", "4", "-c", "6144") as server:
        assert server.client.post("/slots/3?action=restore", json=file).json()["n_restored"] == saved["n_saved"]
        body = server.chat(PROMPTS[2], seed=2, temperature=1.0, max_tokens=10)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128
        assert body["choices"][0]["message"]["content"] == alone[2]
        assert _answer(server, 1) == alone[1]


def test_one_slot_without_batching_is_deterministic(model: Path) -> None:
    """The two flags of llama-server are enough. Log probabilities differ in the last bits even if the text does not."""
    with Server("-m", str(model), "--parallel", "1", "--no-cont-batching", "-c", "2048") as server:
        cold = [_observed(server, PROMPTS[index], index, cache_prompt=False) for index in range(len(PROMPTS))]
        props = server.client.get("/props").json()
        assert props["deterministic"]["default"] is True
        assert [_observed(server, PROMPTS[index], index) for index in (2, 1, 4)] == [cold[2], cold[1], cold[4]]
        order = [index for index in range(len(PROMPTS)) for _ in range(2)]
        random.Random(5).shuffle(order)
        with ThreadPoolExecutor(5) as pool:
            others = [pool.submit(server.chat, f"{LONG} {n}", max_tokens=20) for n in range(2)]
            loaded = list(pool.map(lambda index: _observed(server, PROMPTS[index], index), order))
            assert all(other.result() for other in others)
        assert loaded == [cold[index] for index in order]
        usage = server.chat(PROMPTS[1], max_tokens=1)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 128, "the cache is still used"


def test_a_conversation_is_deterministic_with_and_without_a_cached_prefix(model: Path) -> None:
    """The earlier answer was decoded token by token and is part of the prompt now."""
    with Server("-m", str(model), "--parallel", "1", "--no-cont-batching", "-c", "2048") as server:
        first = server.chat(PROMPTS[1], seed=1, temperature=1.0, max_tokens=40)["choices"][0]["message"]
        again = [{"role": "user", "content": PROMPTS[1]}, first, {"role": "user", "content": "Are you sure?"}]
        options = {"messages": again, "seed": 2, "temperature": 1.0, "max_tokens": 10, "logprobs": True}
        warm, cold = (
            server.client.post("/v1/chat/completions", json={**options, "cache_prompt": cached}).json()["choices"]
            for cached in (True, False)
        )
    assert warm == cold


def _observed(server: Server, prompt: str, seed: int, **options: object) -> object:
    return server.chat(prompt, seed=seed, temperature=1.0, max_tokens=10, logprobs=True, top_logprobs=3, **options)[
        "choices"
    ]
