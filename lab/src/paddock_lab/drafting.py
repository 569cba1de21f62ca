"""How much faster are answers with a draft model?  `python -m paddock_lab.drafting URL`, with a server that has `-md`

Every prompt is sent with each draft length in turn, also 0, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from dataclasses import dataclass

import click

from paddock_lab.client import CHAT, Address, post
from paddock_lab.words import user

_PROMPTS = (
    "Write a short story about a horse that wants to see the sea.",
    "Count from one to forty in words.",
    "Explain to a child why the sky is blue.",
    "List ten towns in France and say one sentence about each.",
)


@dataclass(frozen=True, slots=True)
class Run:
    rate: float
    """Tokens per second of one answer."""
    drafted: int
    accepted: int


@click.command(help=__doc__)
@click.argument("url")
@click.option("--lengths", default="0,2,3,4,8", help="Numbers of tokens to draft at once, to be compared.")
@click.option("--at-once", default=1, help="Concurrent requests.")
@click.option("--tokens", default=96, help="Tokens of each answer.")
@click.option("--p-min", default=0.75, help="As --draft-p-min.")
@click.option("--rounds", default=2)
def main(url: str, lengths: str, at_once: int, tokens: int, p_min: float, rounds: int) -> None:
    runs: defaultdict[int, list[Run]] = defaultdict(list)
    compared = [int(length) for length in lengths.split(",")]
    for _ in range(rounds):
        for prompt in _PROMPTS:
            for length in compared:
                prompts = [f"{prompt} ({number})" for number in range(at_once)]
                runs[length] += asyncio.run(_send_all(Address.of(url), prompts, length, tokens, p_min))
    base = statistics.median(run.rate for run in runs[compared[0]])
    for length in compared:
        rate = statistics.median(run.rate for run in runs[length])
        drafted, accepted = sum(run.drafted for run in runs[length]), sum(run.accepted for run in runs[length])
        share = f"{accepted / drafted:6.1%} of {drafted} accepted" if drafted else ""
        print(f"{length:3} at once  {rate:7.2f} tokens/s  {rate / base:5.2f}x  {share}")


async def _send_all(address: Address, prompts: list[str], length: int, tokens: int, p_min: float) -> list[Run]:
    async def send(prompt: str) -> Run:
        body = {
            "messages": [user(prompt)],
            "temperature": 0,
            "max_tokens": tokens,
            "speculative.n_max": length,
            "speculative.p_min": p_min,
        }
        timings = (await post(address, CHAT, body))["timings"]
        return Run(timings["predicted_per_second"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))

    return await asyncio.gather(*map(send, prompts))


if __name__ == "__main__":
    main()
