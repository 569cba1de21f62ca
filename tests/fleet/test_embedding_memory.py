"""The memory of embeddings beside answers: estimated, checked and counted once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from paddock.errors import InsufficientMemory
from paddock.fleet.lifecycle.model_state import ModelState
from paddock.fleet.lifecycle.preconditions import reserve_embeddings
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.memory.accounts import Accounts
from tests.fleet.fleets import MIB, Unlimited
from tests.options import new_model


def _reserve(path: Path, *, limit: int, loaded: bool) -> ModelState:
    accounts = Accounts(Unlimited(), gpu=False)
    state = ModelState(new_model("llama", str(path)))
    state.needs = {"host": 100 * MIB}
    state.phase = "loaded" if loaded else "unloaded"
    rules = Rules(memory_limit={"host": limit}, check_memory=False)
    for _ in range(2):  # counted once
        asyncio.run(reserve_embeddings(state, accounts, rules, [state]))
    return state


def test_a_loaded_model_needs_room_for_the_context(tiny_models: dict[str, Path]) -> None:
    state = _reserve(tiny_models["llama"], limit=200 * MIB, loaded=True)
    extra = state.takes["host"] - 100 * MIB
    assert 0 < extra < 50 * MIB, "a context without the weights"
    assert state.candidate().needs == state.takes
    with pytest.raises(InsufficientMemory, match="no memory for embeddings beside answers"):
        _reserve(tiny_models["llama"], limit=100 * MIB + extra - 1, loaded=True)
    assert _reserve(tiny_models["llama"], limit=100 * MIB + extra, loaded=True).takes == state.takes
    state.clear()
    assert state.takes == {"host": 100 * MIB}, "freed with the worker"


def test_the_load_makes_room_for_it(tiny_models: dict[str, Path]) -> None:
    state = _reserve(tiny_models["llama"], limit=0, loaded=False)
    assert state.takes["host"] > 100 * MIB


def test_an_unknown_size_is_not_counted() -> None:
    assert _reserve(Path("fake:"), limit=0, loaded=True).takes == {"host": 100 * MIB}
