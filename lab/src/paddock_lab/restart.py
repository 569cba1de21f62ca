"""First tokens of conversations after a restart:  `python -m paddock_lab.restart`

Conversations are computed, asked again warm, and asked again after the server was stopped and started, and after its
worker was killed with SIGKILL. The same is done without `--cache-disk`, where everything is computed again.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

import click

from paddock_lab.client import Answer, stream
from paddock_lab.servers import Entrant, Server, running
from paddock_lab.words import user, words

_SERVE = "{python} -m paddock serve --port {port} --log-disable --cache-ram 4096"
_START_SECONDS = 120
_SETTLED = 3.0
_QUESTIONS = ("Who?", "Where?", "When?", "Why?", "How?", "What?")


@click.command()
@click.option("--conversations", default=20, show_default=True)
@click.option("--tokens", default=2000, show_default=True, help="Of each conversation.")
@click.option("--recomputed", default=5, show_default=True, help="Conversations of the round without a disk.")
@click.option("--arguments", default="", help="More arguments of `paddock serve`.")
def main(conversations: int, tokens: int, recomputed: int, arguments: str) -> None:
    """Measure first tokens: computed, warm, after a restart and after a SIGKILL, with and without a disk cache."""
    texts = [words(tokens, tag=random.Random(number), rest=random.Random(-number)) for number in range(conversations)]
    with tempfile.TemporaryDirectory(prefix="paddock-lab-disk-") as folder:
        disk = Entrant("disk", f"{_SERVE} --cache-disk {folder}:20G {arguments}")
        with running(disk, {}, _START_SECONDS) as server:
            computed = _ask_all(server, texts, 0)
            warm = _ask_all(server, texts, 1)
            _wait_until_written(Path(folder))
        _print("computed", computed, warm)
        _print("warm", warm, warm)
        with running(disk, {}, _START_SECONDS) as server:
            _print("after a restart", _ask_all(server, texts, 2), warm)
            _print("warm again", _ask_all(server, texts, 3), warm)
            _kill_worker(server)
            _print("after SIGKILL of the worker", _ask_all(server, texts, 4), warm)
    with running(Entrant("no disk", f"{_SERVE} {arguments}"), {}, _START_SECONDS) as server:
        _print("without a disk, after a restart", _ask_all(server, texts[:recomputed], 5), warm)


def _ask_all(server: Server, texts: list[str], turn: int) -> list[Answer]:
    """One after the other, each with another question at its end than in other turns."""
    asyncio.run(_ask(server, "Hello"))  # the model is loaded, and the first step is done
    return [asyncio.run(_ask(server, f"{text}. {_QUESTIONS[turn]}")) for text in texts]


async def _ask(server: Server, text: str) -> Answer:
    body = {"messages": [user(text)], "max_tokens": 8, "temperature": 0}
    return await stream(server.address, body, may_be_empty=True)


def _kill_worker(server: Server) -> None:
    workers = [process for process in server.family() if "paddock.worker" in process.cmdline()]
    busiest = max(workers, key=lambda process: process.memory_info().rss)  # another one may be spare
    busiest.send_signal(signal.SIGKILL)
    busiest.wait(30)


def _wait_until_written(folder: Path) -> None:
    """Until no file has changed for a while."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < _SETTLED:
        size = sum(file.stat().st_size for file in folder.glob("*/*/*.kv"))
        if size != before:
            before, since = size, time.monotonic()
        time.sleep(0.1)
    print(f"on disk: {before / 1e6:.0f} MB in {len(list(folder.glob('*/*/*.kv')))} files")


def _print(name: str, answers: list[Answer], warm: list[Answer]) -> None:
    times, usual = ([answer.first_token for answer in some] for some in (answers, warm))
    cached = statistics.median(answer.cached_tokens or 0 for answer in answers)
    prompt = statistics.median(answer.prompt_tokens or 0 for answer in answers)
    ratio = statistics.median(times) / statistics.median(usual)
    print(
        f"{name:32} median {statistics.median(times) * 1000:6.0f} ms   worst {max(times) * 1000:6.0f} ms   "
        f"{ratio:5.2f} of warm   {cached:.0f} of {prompt:.0f} tokens cached"
    )


if __name__ == "__main__":
    main()
