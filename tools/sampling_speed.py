"""Measures what choosing a token costs: `python tools/sampling_speed.py --vocab 256000 --context 32768`.

No model is needed: rows of random logits go through the worker's samplers. All settings take turns, so that other load
on the machine affects them alike. Figures: docs/lab.md.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict

import click
import numpy as np
import numpy.typing as npt

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.sampler import Sampler
from paddock.types import SamplingParams

_SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "top_k 40": SamplingParams(),
    "top_k 0, min_p": SamplingParams(top_k=0, top_p=1.0),
    "top_k 0, top_p": SamplingParams(top_k=0, min_p=0.0),
    "top_k 0, both": SamplingParams(top_k=0),
    "top_k 0, nothing": SamplingParams(top_k=0, top_p=1.0, min_p=0.0),
    "top_k 1000": SamplingParams(top_k=1000),
    "typ_p": SamplingParams(typical_p=0.9),
    "top_n_sigma": SamplingParams(top_n_sigma=1.0),
    "penalties of 64": SamplingParams(repeat_penalty=1.1, frequency_penalty=0.1),
    "penalties of all": SamplingParams(repeat_penalty=1.1, frequency_penalty=0.1, repeat_last_n=-1),
    "DRY of 64": SamplingParams(dry_multiplier=0.8),
    "DRY of all": SamplingParams(dry_multiplier=0.8, dry_penalty_last_n=-1),
    "DRY of all, base 1": SamplingParams(dry_multiplier=0.8, dry_penalty_last_n=-1, dry_base=1.0),
}


@click.command(help=__doc__)
@click.option("--vocab", default=128_000, help="Tokens of the vocabulary.")
@click.option("--context", default=8192, help="Tokens of each prompt.")
@click.option("--users", default=1, help="Rows of a step. All have the same settings.")
@click.option("--rounds", default=30)
@click.option("--spread", default=2.0, help="Standard deviation of most logits.")
@click.option(
    "--peak", default=8.0, help="By how much the best of 50 likely tokens exceeds the others; 0: no likely ones."
)
@click.option("--only", default="", help="Settings whose name contains this.")
def main(vocab: int, context: int, users: int, rounds: int, spread: float, peak: float, only: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(0, spread, (4, users, vocab)).astype(np.float32)
    # A model finds few tokens likely. Without them, top_p would keep a tenth of the vocabulary.
    likely = rng.integers(0, vocab, 50)
    rows[..., likely] = (
        rows.max() + peak - 1.5 * np.log(np.arange(1, 51, dtype=np.float32)) if peak else rows[..., likely]
    )
    # The ids of a text follow Zipf's law, and parts of it repeat.
    prompt = (rng.zipf(1.3, context) % vocab).astype(np.int64)
    prompt[context // 2 : context // 2 + context // 4] = prompt[: context // 4]
    chosen = {name: params for name, params in _SETTINGS.items() if only in name}
    batches = {name: _batch(params, prompt.tolist(), users) for name, params in chosen.items()}
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name, batch in batches.items():
            step = rows[number % len(rows)]
            began = time.perf_counter()
            batch.choose(step)
            taken[name].append(time.perf_counter() - began)
    base = statistics.median(taken[next(iter(taken))])
    for name, seconds in taken.items():
        middle = statistics.median(seconds[1:])
        print(
            f"{name:20} {middle * 1e6:9.0f} µs  first {seconds[0] * 1e6:9.0f} µs  {middle / base:6.2f} times the first"
        )


def _batch(params: SamplingParams, prompt: list[int], users: int) -> BatchSampler:
    breakers: npt.NDArray[np.int32] = np.arange(10, 30, dtype=np.int32)
    first = Sampler(params, prompt, breakers=lambda _: breakers)
    return BatchSampler([first.sibling(params) for _ in range(users)])


if __name__ == "__main__":
    main()
