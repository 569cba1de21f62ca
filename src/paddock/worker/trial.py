"""Tries libllama and prints the result as JSON. It may crash, which the caller handles.

`python -m paddock.worker.trial count` lets a tiny model count; `… speed MODEL THREADS` measures the speed of a model.
A further word `gpu` lets the GPU compute.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from paddock.engine.trial import speed, wrong_answer


def main() -> None:
    question, *rest = sys.argv[1:]
    on_gpu = rest[-1:] == ["gpu"]
    if question == "count":
        answer: object = {"problem": wrong_answer(on_gpu=on_gpu) or ""}
    else:
        answer = speed(Path(rest[0]), threads=int(rest[1]), on_gpu=on_gpu)
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")


if __name__ == "__main__":
    main()
