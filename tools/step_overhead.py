"""Measures what a step costs outside libllama: `python tools/step_overhead.py --model FILE --users 32`.

The engine thread of a worker runs whole steps, from the schedule to the frame for the gateway. Only libllama's
computation is left out: after the prompts, rows of random logits take its place. Figures: docs/lab.md.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from typing import Any
from unittest.mock import patch

import click
import numpy as np

from paddock.config import ModelSettings
from paddock.engine.libllama import lib
from paddock.engine.outputs import Outputs
from paddock.fleet.catalogue.options import engine_options
from paddock.text import StopStrings
from paddock.types import GenerateRequest, SamplingParams, TokenPrompt
from paddock.wire.frames import encode
from paddock.worker.commands import Add
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.generation_thread import GenerationThread
from paddock.worker.preparation import PreparedPrompt
from paddock.worker.sequences import scheduler_requests

_PROMPT = 32
_WARM_UP = 20


class _Steps(GenerationThread):
    """The engine thread, without a thread: the caller runs its steps."""

    def open_here(self) -> None:
        self.state_lock.acquire()
        self._open()
        self.engine.is_cpu_bound = False  # no other worker computes

    def run_one(self) -> bool:
        """Run a step. False: there is nothing left to do."""
        self._receive()
        self._step()
        return not self._is_idle


@click.command(help=__doc__)
@click.option("--model", type=click.Path(exists=True), required=True)
@click.option("--users", default=32)
@click.option("--steps", default=300)
@click.option("--temperature", default=0.8)
@click.option("--profile", is_flag=True, help="Print the functions that take longest.")
def main(model: str, users: int, steps: int, temperature: float, profile: bool) -> None:
    settings = ModelSettings(n_threads=1, n_ctx=(_PROMPT + steps + 16) * users, parallel=users, cache_ram=0)
    options = engine_options(settings, verbose=False)
    sent: list[int] = []
    thread = _Steps(
        model,
        options,
        CpuLock(-1, threads=1, cpus=[0]),
        lambda _: None,
        lambda message: sent.append(len(encode(message))),
    )
    thread.open_here()
    engine = thread.engine
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 2, (8, users, engine.info.n_vocab)).astype(np.float32)
    rows[..., 1000:1050] += 10  # a few likely tokens
    rows[..., list(engine.vocab.end_tokens)] = -100
    for user in range(users):
        tokens = rng.integers(1000, 2000, _PROMPT).tolist()
        request = GenerateRequest(TokenPrompt(tokens), SamplingParams(temperature=temperature, seed=user), steps)
        sampler = engine.sampler(request.sampling, tokens)
        prompt = PreparedPrompt(tokens, None, sampler, StopStrings(()), None)
        thread.tell(Add(scheduler_requests(user, request, prompt, engine, options, time.perf_counter())(0)))
    whole: list[float] = []
    inside: list[float] = []
    real_decode = engine.decode

    def logits(_: Any, count: int) -> Any:
        return rows[len(whole) % len(rows)][:count]

    def decode(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        sampled = real_decode(*arguments, **named)
        inside.append(time.perf_counter() - began)
        return sampled

    profiler = cProfile.Profile()
    nothing = {"llama_decode": lambda *_: 0, "llama_synchronize": lambda *_: None}
    with (
        patch.dict(vars(lib), nothing),
        patch.object(Outputs, "_logits", logits),
        patch.object(engine, "decode", decode),
    ):
        is_busy = True
        while is_busy:
            if profile and len(whole) == _WARM_UP:
                profiler.enable()
            began = time.perf_counter()
            is_busy = thread.run_one()
            whole.append(time.perf_counter() - began)
        profiler.disable()
    # The fastest of ten steps: other load on the machine makes steps slower, never faster.
    total, engines = (statistics.quantiles(times[_WARM_UP:], n=10)[0] * 1e6 for times in (whole, inside))
    print(
        f"{users} users: {total:.0f} µs per step, {engines:.0f} of them in the engine (batch, sampling), "
        f"{total - engines:.0f} in the rest; {sum(sent) // len(whole)} bytes sent"
    )
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
