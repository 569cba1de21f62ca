"""Does a batch survive kills?  `python -m paddock_lab.batch_kills --model FILE`

A deterministic batch runs twice: once undisturbed, and once while the server, the worker or both are killed again and
again, each time at a random moment. The answers and their receipts must be the same to the byte, every line must be
answered once, and `paddock verify` must agree; after one byte of the output is changed it must not. Otherwise the exit
status is 1.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import psutil

from paddock_lab.client import get
from paddock_lab.servers import Entrant, Server, running
from paddock_lab.words import user, words

_SERVE = "{python} -m paddock serve --port {port} --log-disable --data-dir {folder} -m {model} {arguments}"
_START_SECONDS = 120
_END_SECONDS = 3600
_KINDS = ("server", "worker", "both")
_SYSTEMS = 10


@click.command()
@click.option("--model", required=True, help="A GGUF file, or fake:")
@click.option("--lines", default=500, show_default=True)
@click.option("--kills", default=100, show_default=True)
@click.option("--output", default=16, show_default=True, help="Tokens of an answer.")
@click.option("--seed", default=1, show_default=True)
@click.option("--arguments", default="-np 4 -c 2048", show_default=True, help="More arguments of `paddock serve`.")
def main(model: str, lines: int, kills: int, output: int, seed: int, arguments: str) -> None:
    """Kill a server while it runs a batch, and compare the output with that of an undisturbed run."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="paddock-lab-kills-") as name:
        folder = Path(name)
        written = folder / "lines.jsonl"
        written.write_text("".join(json.dumps(line) + "\n" for line in _lines(lines, output)), encoding="utf-8")
        entrant = Entrant("Paddock", _SERVE.replace("{model}", model).replace("{arguments}", arguments))
        calm, _ = _run(entrant, written, folder / "calm", 0, chance)
        began = time.perf_counter()
        disturbed, killed = _run(entrant, written, folder / "killed", kills, chance)
        print(
            f"{sum(killed.values())} kills in {time.perf_counter() - began:.0f} s: "
            + ", ".join(f"{kind} {count}" for kind, count in sorted(killed.items()))
        )
        problems = _differences(calm, disturbed, lines)
        output_file = folder / "killed" / "out.jsonl"
        problems += _verified(entrant, output_file, folder / "verify")
    for problem in problems:
        print(problem)
    print("failed" if problems else f"{lines} lines, each answered once, identical to the undisturbed run and verified")
    sys.exit(bool(problems))


def _lines(count: int, output: int) -> list[dict[str, Any]]:
    systems = [words(12, tag=random.Random(number), rest=random.Random(-number)) for number in range(_SYSTEMS)]
    return [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "messages": [
                    {"role": "system", "content": systems[number % _SYSTEMS]},
                    user(words(6, tag=random.Random(1000 + number), rest=random.Random(number))),
                ],
                "max_tokens": output,
                "temperature": 0.8,
                "ignore_eos": True,
            },
        }
        for number in range(count)
    ]


def _run(
    entrant: Entrant, lines: Path, folder: Path, kills: int, chance: random.Random
) -> tuple[dict[str, Any], Counter[str]]:
    """The output of the batch by `custom_id`, and what was killed."""
    folder.mkdir()
    killed: Counter[str] = Counter()
    batch = ""
    while True:
        with running(entrant, {"folder": str(folder / "data")}, _START_SECONDS) as server:
            batch = batch or _submit(server, lines)
            if _disturb(server, batch, kills, killed, chance):
                continue
            _command("fetch", batch, "-o", str(folder / "out.jsonl"), server=server)
        found = [json.loads(line) for line in (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
        by_id = {line["custom_id"]: line for line in found}
        if len(by_id) != len(found):
            by_id["duplicates"] = len(found) - len(by_id)
        return by_id, killed


def _disturb(server: Server, batch: str, kills: int, killed: Counter[str], chance: random.Random) -> bool:
    """Kill something each time that some more lines are done. True: the server is dead. False: the batch has ended."""
    until = time.monotonic() + _END_SECONDS
    target = 0
    while time.monotonic() < until:
        state = asyncio.run(get(server.address, f"/v1/batches/{batch}"))
        if state["status"] in ("completed", "failed", "expired", "cancelled"):
            return False
        counts = state["request_counts"]
        done, left = counts["completed"] + counts["failed"], kills - sum(killed.values())
        if not counts["total"] or left <= 0:
            time.sleep(0.05)
            continue
        if not target:
            # So that the kills are spread over the whole batch.
            target = done + chance.randint(0, max(1, (counts["total"] - done) // left))
        if done < min(target, counts["total"]):
            time.sleep(0.005)
            continue
        target = 0
        time.sleep(chance.uniform(0, 0.05))
        kind = chance.choice(_KINDS)
        if _kill(server, kind):
            killed[kind] += 1
            if kind != "worker":
                return True
    raise click.ClickException("the batch did not end")


def _kill(server: Server, kind: str) -> bool:
    """False: there is no worker at this moment."""
    assert server.process is not None, "it was started here"
    workers = server.process.children() if kind != "server" else []
    if kind != "server" and not workers:
        time.sleep(0.005)
        return False
    for process in [*workers, *([server.process] if kind != "worker" else [])]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    if kind == "worker":
        psutil.wait_procs(workers, 10)
    else:
        server.process.wait(10)
    return True


def _submit(server: Server, lines: Path) -> str:
    return _command("submit", str(lines), "--deterministic", server=server).split()[-1]


def _command(*arguments: str, server: Server) -> str:
    url = server.address.url("").rstrip("/")
    command = [sys.executable, "-m", "paddock", "batch", *arguments, "--url", url]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"paddock batch {arguments[0]}: {done.stderr}")
    return done.stdout


def _differences(calm: dict[str, Any], disturbed: dict[str, Any], lines: int) -> list[str]:
    problems = [
        f"{name}: {len(found)} lines instead of {lines}"
        for name, found in (("undisturbed", calm), ("with kills", disturbed))
        if len(found) != lines
    ]
    for id, line in calm.items():
        if id in disturbed and _bytes(line) != _bytes(disturbed[id]):
            problems.append(f"{id} differs: {_bytes(line)!r} and {_bytes(disturbed[id])!r}")
    return problems


def _bytes(line: dict[str, Any]) -> bytes:
    """What is the same in two runs: not ids, times, the place in the file, and what a cache saved."""
    body = line["response"]["body"]
    receipt = {name: body["receipt"][name] for name in ("request", "identity", "sampling", "seed", "answers")}
    return json.dumps([line["custom_id"], body["choices"], receipt], sort_keys=True).encode()


def _verified(entrant: Entrant, output: Path, folder: Path) -> list[str]:
    folder.mkdir()
    with running(entrant, {"folder": str(folder)}, _START_SECONDS) as server:
        url = server.address.url("").rstrip("/")
        done = _verify(output, "--server", url)
        problems = [] if done.returncode == 0 else [f"paddock verify: {done.returncode}: {done.stdout}{done.stderr}"]
        print(done.stdout.strip())
        data = bytearray(output.read_bytes())
        # A letter of a text: what is changed must still be JSON, or the file is malformed (status 2).
        found = re.search(rb'"message":\{"role":"assistant","content":"[^"\\]*?[a-z]', data)
        assert found is not None, "an answer has a letter"
        data[found.end() - 1] ^= 1 if data[found.end() - 1] != ord("z") else 3
        changed = folder / "changed.jsonl"
        changed.write_bytes(data)
        if _verify(changed, "--sample", "0").returncode != 1:
            problems.append("paddock verify did not find a changed byte")
    return problems


def _verify(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paddock", "verify", str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


if __name__ == "__main__":
    main()
