"""Measures what a step costs outside libllama: `python tools/step_overhead.py --model FILE --users 32`.

The engine thread of a worker runs whole steps, from the schedule to the frame for the gateway. Only libllama's
computation is left out: after the prompts, rows of random logits take its place. Figures: docs/lab.md.

With `--real` libllama computes, on a GPU with `--gpu`. With `--pretend MS` a step takes so many milliseconds in which
this process waits, as for a GPU. Both print the share of a step outside libllama in two orders: the results of a step
are published before the next one begins, or while it is computed.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import numpy.typing as npt

from paddock.config import ModelSettings
from paddock.engine.libllama import lib
from paddock.engine.outputs import Outputs
from paddock.fleet.catalogue.options import engine_options
from paddock.text import StopStrings
from paddock.types import EngineOptions, GenerateRequest, SamplingParams, TokenPrompt
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

    def __init__(self, model: str, options: EngineOptions, *, overlaps: bool) -> None:
        self.sent = 0
        lock = CpuLock(-1, threads=1, cpus=[0])
        super().__init__(model, options, lock, lambda _: None, self._count, overlaps=overlaps)
        self.state_lock.acquire()
        self._open()
        self.engine.is_cpu_bound = False  # no other worker computes

    def _count(self, message: Any) -> None:
        self.sent += len(encode(message))

    def ask(self, users: int, steps: int, temperature: float) -> None:
        """Each step gives one token, and no answer ends early."""
        rng = np.random.default_rng(2)
        for user in range(users):
            tokens = rng.integers(1000, 2000, _PROMPT).tolist()
            sampling = SamplingParams(temperature=temperature, seed=user, ignore_eos=True)
            request = GenerateRequest(TokenPrompt(tokens), sampling, steps, draft_type="none")
            prompt = PreparedPrompt(tokens, None, self.engine.sampler(sampling, tokens), StopStrings(()), None)
            self.tell(
                Add(scheduler_requests(user, request, prompt, self.engine, self._options, time.perf_counter())(0))
            )

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
@click.option("--real", is_flag=True, help="Let libllama compute, and compare both orders.")
@click.option("--gpu", is_flag=True, help="Let the GPU compute all layers.")
@click.option("--pretend", type=float, help="Pretend that a GPU takes so many ms, and compare both orders.")
def main(
    model: str, users: int, steps: int, temperature: float, profile: bool, real: bool, gpu: bool, pretend: float | None
) -> None:
    settings = ModelSettings(
        n_threads=1,
        n_ctx=(_PROMPT + steps + 16) * users,
        parallel=users,
        cache_ram=0,
        n_gpu_layers=-1 if gpu else 0,
    )
    options = engine_options(settings, verbose=False)
    if real or pretend is not None:
        threads = {name: _Steps(model, options, overlaps=name == "overlapped") for name in ("plain", "overlapped")}
        for thread in threads.values():
            thread.ask(users, steps, temperature)
        with nullcontext() if pretend is None else _pretended_gpu(pretend / 1e3, _random_rows(threads["plain"], users)):
            _compare_orders(threads, users, steps)
        return
    thread = _Steps(model, options, overlaps=False)
    engine = thread.engine
    rows = _random_rows(thread, users)
    thread.ask(users, steps, temperature)
    whole: list[float] = []
    inside: list[float] = []

    def logits(_: Any, count: int) -> Any:
        return rows[len(whole) % len(rows)][:count]

    profiler = cProfile.Profile()
    nothing = {"llama_decode": lambda *_: 0, "llama_synchronize": lambda *_: None}
    spent = _Clock()
    with (
        patch.dict(vars(lib), nothing),
        patch.object(Outputs, "_logits", logits),
        patch.object(engine, "submit", spent.timed(engine.submit)),
        patch.object(engine, "collect", spent.timed(engine.collect)),
    ):
        is_busy = True
        while is_busy:
            if profile and len(whole) == _WARM_UP:
                profiler.enable()
            began = time.perf_counter()
            is_busy = thread.run_one()
            whole.append(time.perf_counter() - began)
            inside.append(spent.take())
        profiler.disable()
    total, engines = (1e6 * _fastest(times) for times in (whole, inside))
    print(
        f"{users} users: {total:.0f} µs per step, {engines:.0f} of them in the engine (batch, sampling), "
        f"{total - engines:.0f} in the rest; {thread.sent // len(whole)} bytes sent"
    )
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


class _Clock:
    """Adds up the time in functions."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self._seconds += time.perf_counter() - began

        return run

    def take(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def _fastest(times: list[float]) -> float:
    """The fastest of ten: other load on the machine makes steps slower, never faster."""
    return statistics.quantiles(times[_WARM_UP:-_WARM_UP], n=10)[0]


def _random_rows(thread: _Steps, users: int) -> npt.NDArray[np.float32]:
    rows = np.random.default_rng(1).normal(0, 2, (8, users, thread.engine.info.n_vocab)).astype(np.float32)
    rows[..., 1000:1050] += 10  # a few likely tokens
    return rows


@contextmanager
def _pretended_gpu(seconds: float, rows: npt.NDArray[np.float32]) -> Iterator[None]:
    """A step returns at once, and its outputs come when this time is over."""
    done_at = 0.0

    def decode(*_: Any) -> int:
        nonlocal done_at
        done_at = time.perf_counter() + seconds
        return 0

    def wait(*_: Any) -> None:
        time.sleep(max(done_at - time.perf_counter(), 0.0))

    def logits(_: Any, count: int) -> Any:
        lib.llama_synchronize(None)
        return rows[0][:count]

    functions = {"llama_decode": decode, "llama_synchronize": wait}
    with patch.dict(vars(lib), functions), patch.object(Outputs, "_logits", logits):
        yield


def _compare_orders(threads: dict[str, _Steps], users: int, steps: int) -> None:
    """In turns, so that both orders have the same neighbours on the machine."""
    whole: dict[str, list[float]] = {name: [] for name in threads}
    inside: dict[str, list[float]] = {name: [] for name in threads}
    spent = _Clock()
    waits = ("llama_decode", "llama_get_logits", "llama_synchronize", "llama_get_sampled_logits_count_ith")
    with patch.dict(vars(lib), {name: spent.timed(getattr(lib, name)) for name in waits if hasattr(lib, name)}):
        for _ in range(steps):
            for name, thread in threads.items():
                began = time.perf_counter()
                thread.run_one()
                whole[name].append(time.perf_counter() - began)
                inside[name].append(spent.take())
    # In the plain order nothing else happens while libllama computes, so this is what it needs for a step.
    needed = _fastest(inside["plain"])
    for name, times in whole.items():
        total = _fastest(times)
        print(
            f"{users} users, {name}: {1e3 * total:.2f} ms per step, {100 * (1 - needed / total):.1f} % of it outside "
            f"libllama ({1e3 * needed:.2f} ms; in this order the thread is in libllama for "
            f"{1e3 * _fastest(inside[name]):.2f} ms)"
        )


if __name__ == "__main__":
    main()
