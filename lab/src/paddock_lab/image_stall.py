"""How long running answers wait for an image:  `python -m paddock_lab.image_stall --arguments "-m M --mmproj P"`

Answers run; then a request with an image that the server has not seen arrives. The longest gap between two tokens of
the others is the stall. The same is done with a text of as many tokens, and with the image a second time.
"""

from __future__ import annotations

import asyncio
import base64
import random
import statistics
import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise

import click

from paddock_lab.client import Address, Answer, stream
from paddock_lab.servers import Entrant, running
from paddock_lab.words import user, words

_SERVE = "{python} -m paddock serve --port {port} --log-disable"
_START_SECONDS = 120
_RUNNING_TOKENS = 20
"""Tokens that each answer has when the image arrives."""


@dataclass(frozen=True)
class Stall:
    first_token: float
    longest: float
    usual: float
    tokens: int


@click.command()
@click.option("--arguments", required=True, help="Arguments of `paddock serve`: the model and its projector.")
@click.option("--server", default=_SERVE, help="Another server, as a command with {port}.")
@click.option("--streams", default=3, show_default=True, help="Answers that run meanwhile.")
@click.option("--length", default=300, show_default=True, help="Tokens of each.")
@click.option("--size", default=336, show_default=True, help="Pixels on a side of the image.")
@click.option("--rounds", default=3, show_default=True)
def main(arguments: str, server: str, streams: int, length: int, size: int, rounds: int) -> None:
    """Measure the longest gap of running answers beside an image, a text of as many tokens, and a known image."""
    with running(Entrant("server", f"{server} {arguments}"), {}, _START_SECONDS) as started:
        address = started.address
        asyncio.run(stream(address, _body("Hello", 8)))
        found: dict[str, list[Stall]] = {"new image": [], "text": [], "known image": []}
        for number in range(rounds):
            picture = _part(number, size)
            question = [picture, {"type": "text", "text": "What is it?"}]
            found["new image"].append(asyncio.run(_measure(address, question, streams, length)))
            found["known image"].append(asyncio.run(_measure(address, question, streams, length)))
            count = found["new image"][-1].tokens
            text = words(count, tag=random.Random(number), rest=random.Random(-number))
            found["text"].append(asyncio.run(_measure(address, text, streams, length)))
    for name, stalls in found.items():
        usual = statistics.median(stall.usual for stall in stalls)
        longest = [stall.longest for stall in stalls]
        first = statistics.median(stall.first_token for stall in stalls)
        print(
            f"{name:12} {stalls[0].tokens:5} tokens   longest gap median {statistics.median(longest) * 1000:6.0f} ms   "
            f"worst {max(longest) * 1000:6.0f} ms   usual {usual * 1000:5.1f} ms   first token {first * 1000:6.0f} ms"
        )


async def _measure(address: Address, content: object, streams: int, length: int) -> Stall:
    ready = asyncio.Semaphore(0)

    def on_event(count: int) -> None:
        if count == _RUNNING_TOKENS:
            ready.release()

    # Each another one: the tokens of a known answer are guessed, and arrive together.
    chance = random.Random()
    topics = [words(8, tag=chance, rest=chance) for _ in range(streams)]
    stories = [_body(f"Tell me a long story about {topic}.", length) for topic in topics]
    others = [asyncio.ensure_future(stream(address, body, on_event=on_event)) for body in stories]
    for _ in range(streams):
        await ready.acquire()
    asked = await stream(address, _body(content, 4), may_be_empty=True)
    answers: list[Answer] = await asyncio.gather(*others)
    gaps = [(later - earlier, later) for answer in answers for earlier, later in pairwise(answer.times)]
    beside = [gap for gap, end in gaps if asked.sent <= end and end - gap <= asked.done]
    return Stall(asked.first_token, max(beside), statistics.median(gap for gap, _ in gaps), asked.prompt_tokens or 0)


def _body(content: object, length: int) -> dict[str, object]:
    message = user(content) if isinstance(content, str) else {"role": "user", "content": content}
    return {"messages": [message], "max_tokens": length, "temperature": 0, "ignore_eos": True}


def _part(seed: int, size: int) -> dict[str, object]:
    data = base64.b64encode(_png(seed, size)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _png(seed: int, size: int) -> bytes:
    """A square of random pixels."""
    rows = b"".join(b"\0" + random.Random(seed * size + row).randbytes(3 * size) for row in range(size))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


if __name__ == "__main__":
    main()
