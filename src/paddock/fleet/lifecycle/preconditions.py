"""Checks before a model is loaded."""

from __future__ import annotations

import asyncio
import time

from paddock.errors import ModelCrashing, ModelLoadFailed
from paddock.fleet.lifecycle.model_state import ModelState
from paddock.fleet.memory.accounts import Accounts

_SHORT_BACKOFF = 2.0
"""A request waits for a failed model's backoff up to this many seconds."""


async def check_loadable(state: ModelState, accounts: Accounts) -> None:
    """Raise if the model cannot be loaded; find out how much memory it needs."""
    if state.needs is not None:
        return
    model = state.model
    problem = await asyncio.to_thread(model.problem)
    if problem is not None:
        raise ModelLoadFailed(f"cannot load {model.name}: {problem}", param="model")
    needs = await asyncio.to_thread(accounts.needs, model)
    if state.model is model:
        state.needs = needs


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
