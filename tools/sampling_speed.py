"""Measures what choosing a token costs: `python tools/sampling_speed.py --vocab 256000 --context 32768`.

No model is needed: rows of random logits go through the worker's samplers. With `--model FILE` whole steps of the
engine are measured. All settings take turns, so that other load on the machine affects them alike.

Figures: docs/lab.md.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from paddock.config import ModelSettings
from paddock.engine import Engine, open_engine
from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.sampler import Sampler
from paddock.fleet.catalogue.options import engine_options
from paddock.types import Constraint, SamplingParams, Span

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
_BASE = "top_k 40"
_CONSTRAINED = "JSON schema"
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 40},
        "size": {"type": "integer"},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
_PROMPT = 100
"""Tokens of each prompt that the model computes."""

Step = Callable[[int], None]


@click.command(help=__doc__)
@click.option("--model", type=click.Path(exists=True), help="A GGUF file. Without it there are only random logits.")
@click.option("--threads", default=2, help="Of the model.")
@click.option("--vocab", default=128_000, help="Tokens of the vocabulary, without a model.")
@click.option("--context", default=8192, help="Tokens of each prompt that penalties see.")
@click.option("--users", default=1, help="Rows of a step. All have the same settings.")
@click.option("--rounds", default=30)
@click.option("--spread", default=2.0, help="Standard deviation of most logits, without a model.")
@click.option(
    "--peak", default=8.0, help="By how much the best of 50 likely tokens exceeds the others; 0: no likely ones."
)
@click.option("--only", default="", help="Settings whose name contains one of these, separated by `|`.")
def main(
    model: str | None,
    threads: int,
    vocab: int,
    context: int,
    users: int,
    rounds: int,
    spread: float,
    peak: float,
    only: str,
) -> None:
    names = [name for name in (*_SETTINGS, _CONSTRAINED) if any(part in name for part in only.split("|"))]
    prepare: Step = lambda _: None  # noqa: E731
    if model is None:
        steps, prepare = _sampling_alone(names, vocab, context, users, spread, peak)
    else:
        steps = _whole_steps(names, model, threads, context, users)
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name, step in steps.items():
            prepare(number)
            began = time.perf_counter()
            step(number)
            taken[name].append(time.perf_counter() - began)
    base = statistics.median(taken[_BASE if _BASE in taken else next(iter(taken))])
    for name, seconds in taken.items():
        middle = statistics.median(seconds[1:])
        print(
            f"{name:20} {middle * 1e6:9.0f} µs  best {min(seconds) * 1e6:9.0f} µs  first {seconds[0] * 1e6:9.0f} µs  "
            f"{middle / base:6.2f}"
        )


def _sampling_alone(
    names: list[str], vocab: int, context: int, users: int, spread: float, peak: float
) -> tuple[dict[str, Step], Step]:
    """The steps, and what is done before each of them: the model writes new logits."""
    rng = np.random.default_rng(1)
    rows = rng.normal(0, spread, (4, users, vocab)).astype(np.float32)
    # A model finds few tokens likely. Without them, top_p would keep a tenth of the vocabulary.
    likely = rng.integers(0, vocab, 50)
    rows[..., likely] = (
        rows.max() + peak - 1.5 * np.log(np.arange(1, 51, dtype=np.float32)) if peak else rows[..., likely]
    )
    logits = rows[0].copy()
    breakers: npt.NDArray[np.int32] = np.arange(10, 30, dtype=np.int32)

    def step_of(params: SamplingParams) -> Step:
        first = Sampler(params, _text(context, vocab), breakers=lambda _: breakers)
        batch = BatchSampler([first.sibling(params) for _ in range(users)])

        def step(_: int) -> None:
            batch.choose(logits)

        return step

    def write(number: int) -> None:
        np.copyto(logits, rows[number % len(rows)])

    return {name: step_of(_SETTINGS[name]) for name in names if name != _CONSTRAINED}, write


def _whole_steps(names: list[str], model: str, threads: int, context: int, users: int) -> dict[str, Step]:
    settings = ModelSettings(n_threads=threads, n_ctx=2048 * users, parallel=users, cache_ram=0)
    engine: Engine = open_engine(model, engine_options(settings, verbose=False), lambda _: None)
    text = engine.vocab.tokenize(Path(__file__).read_text(), add_special=True, parse_special=False)
    places = [_PROMPT] * users
    newest = [0] * users
    for user in range(users):
        (sampled,) = engine.decode([Span(user, 0, text[user : user + _PROMPT], Sampler(_SETTINGS["greedy"]))])
        assert sampled is not None
        newest[user] = sampled.token or 0

    def step_of(params: SamplingParams, *, constrained: bool) -> Step:
        grammar = None
        if constrained:
            grammar = engine.grammars.compile(Constraint("json_schema", json.dumps(_SCHEMA), "json_schema"))
        prompt = _text(context, engine.info.n_vocab)
        first = engine.sampler(params, prompt, grammar)
        samplers = [first.sibling(params) for _ in range(users)]

        def step(_: int) -> None:
            spans = [Span(user, places[user], [newest[user]], samplers[user]) for user in range(users)]
            for user, sampled in enumerate(engine.decode(spans)):
                assert sampled is not None
                assert sampled.token is not None, sampled.error
                newest[user] = sampled.token
                places[user] += 1
                if sampled.last:
                    samplers[user] = first.sibling(params)

        return step

    return {name: step_of(_SETTINGS.get(name, SamplingParams()), constrained=name == _CONSTRAINED) for name in names}


def _text(size: int, vocab: int) -> list[int]:
    """The ids of a text follow Zipf's law, and parts of it repeat."""
    rng = np.random.default_rng(2)
    text = (rng.zipf(1.3, size) % vocab).astype(np.int64)
    text[size // 2 : size // 2 + size // 4] = text[: size // 4]
    return list(text.tolist())


if __name__ == "__main__":
    main()
