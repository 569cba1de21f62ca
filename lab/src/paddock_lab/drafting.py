"""How much faster does a draft model make answers?  `python -m paddock_lab.drafting URL`, a server with `-md`

Every question is asked with each length of guesses in turn, 0 among them, so that a busy machine slows all alike.
"""

from __future__ import annotations

import json
import statistics
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import click

_QUESTIONS = (
    "Write a short story about a horse that wants to see the sea.",
    "Count from one to forty in words.",
    "Explain to a child why the sky is blue.",
    "List ten towns in France and say one sentence about each.",
)


@dataclass(frozen=True, slots=True)
class Run:
    rate: float
    """Tokens in a second, of each answer."""
    drafted: int
    accepted: int


@click.command(help=__doc__)
@click.argument("url")
@click.option("--lengths", default="0,2,3,4,8", help="How many tokens are guessed at once, to be compared.")
@click.option("--at-once", default=1, help="Answers that are written side by side.")
@click.option("--tokens", default=96, help="Of each answer.")
@click.option("--p-min", default=0.75, help="As --draft-p-min.")
@click.option("--rounds", default=2)
def main(url: str, lengths: str, at_once: int, tokens: int, p_min: float, rounds: int) -> None:
    runs: defaultdict[int, list[Run]] = defaultdict(list)
    wanted = [int(length) for length in lengths.split(",")]
    with ThreadPoolExecutor(at_once) as pool:
        for _ in range(rounds):
            for question in _QUESTIONS:
                for length in wanted:
                    bodies = [_body(f"{question} ({number})", length, tokens, p_min) for number in range(at_once)]
                    runs[length] += pool.map(lambda body: _ask(url, body), bodies)
    usual = statistics.median(run.rate for run in runs[wanted[0]])
    for length in wanted:
        rate = statistics.median(run.rate for run in runs[length])
        drafted, accepted = sum(run.drafted for run in runs[length]), sum(run.accepted for run in runs[length])
        right = f"{accepted / drafted:6.1%} of {drafted} right" if drafted else ""
        print(f"{length:3} at once  {rate:7.2f} tokens/s  {rate / usual:5.2f}x  {right}")


def _body(question: str, length: int, tokens: int, p_min: float) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": tokens,
        "speculative.n_max": length,
        "speculative.p_min": p_min,
    }


def _ask(url: str, body: dict[str, Any]) -> Run:
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=600) as response:
        timings = json.load(response)["timings"]
    return Run(timings["predicted_per_second"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))


if __name__ == "__main__":
    main()
