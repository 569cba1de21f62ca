"""Checks before a model is loaded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from paddock.errors import ModelCrashing, ModelLoadFailed, ModelUnloaded, ServerStopping
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.model_state import ModelState
from paddock.fleet.lifecycle.policy import Bytes, Candidate, Limits, decide
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.memory.accounts import Accounts, insufficient
from paddock.fleet.memory.estimate import Estimate

_SHORT_BACKOFF = 2.0
"""A request waits for a failed model's backoff up to this many seconds."""


async def check_loadable(state: ModelState, accounts: Accounts) -> None:
    """Raise if the model cannot be loaded; find out how much memory it needs. During the unload that a reload of the
    configuration causes, this is the new model.
    """
    model = state.next
    if model is None:
        raise not_served(state.model.name)
    if state.needs is not None and model is state.model:
        return
    problem = await asyncio.to_thread(model.problem)
    if problem is not None:
        raise ModelLoadFailed(f"cannot load {model.name}: {problem}", param="model")
    needs = await asyncio.to_thread(accounts.needs, model)
    if state.model is model:
        state.needs = needs


async def reserve_embeddings(state: ModelState, accounts: Accounts, rules: Rules, states: Iterable[ModelState]) -> None:
    """Count the memory for embeddings beside answers, once for each load. If the model is not loaded, its load makes
    room for them. Raises `InsufficientMemory`.
    """
    if state.embeddings:
        return
    extra = await asyncio.to_thread(accounts.embedding_needs, state.model)
    if rules.check_memory:
        await accounts.refresh()
    if extra and not state.embeddings:
        if state.phase != "unloaded":
            accounts.check_embeddings(state, extra, rules, states)
        state.embeddings = extra


@dataclass(frozen=True, slots=True)
class LoadForecast:
    """What a load would take."""

    model: Model
    estimate: Estimate | None
    """None if it cannot be loaded."""
    limit: Bytes
    """The most that all models together may take on each device now."""
    problem: str | None
    """Why it cannot be loaded, or does not fit."""


async def current_limits(accounts: Accounts, rules: Rules, states: Iterable[ModelState]) -> Limits:
    """What all models together may take, as measured now."""
    if rules.check_memory:
        await accounts.refresh()
    return accounts.limits(rules, [state for state in states if state.phase != "unloaded"])


async def forecast(model: Model, accounts: Accounts, rules: Rules, states: Iterable[ModelState]) -> LoadForecast:
    """Whether a model could be loaded, after idle models have made room for it."""
    problem = await asyncio.to_thread(model.problem)
    limits = await current_limits(accounts, rules, states)
    if problem is not None:
        return LoadForecast(model, None, limits.memory, problem)
    needs = await asyncio.to_thread(accounts.needs, model)
    loaded = [state for state in states if state.phase != "unloaded" and state.model.name != model.name]
    candidate = Candidate(model.name, needs, waiting_since=0.0)
    shortage = decide([*(state.candidate() for state in loaded), candidate], limits, time.monotonic()).impossible.get(
        model.name
    )
    return LoadForecast(
        model,
        await asyncio.to_thread(accounts.estimate, model),
        limits.memory,
        None if shortage is None else insufficient(model.name, shortage).message,
    )


def server_stopping() -> ServerStopping:
    return ServerStopping("the server is stopping")


def not_served(name: str) -> ModelUnloaded:
    return ModelUnloaded(f"{name} is no longer served", param="model")


async def wait_for_backoff(state: ModelState) -> None:
    """After failures: wait for a short backoff, raise for a long one."""
    pause = state.failures.pause(time.monotonic())
    if state.phase != "unloaded" or pause == 0:
        return
    if pause > _SHORT_BACKOFF:
        raise ModelCrashing(
            f"{state.model.name} failed {state.failures.count} times in a row and is not loaded for {pause:.0f} s. "
            f"Last failure: {state.failures.reason}",
            retry_after=pause,
        )
    await asyncio.sleep(pause)
