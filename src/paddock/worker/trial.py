"""Tries libllama and prints the result as JSON. It may crash, which the caller handles.

`python -m paddock.worker.trial count` lets a tiny model count; `… speed MODEL THREADS` measures the speed of a model.
A further word `gpu` lets the GPU compute.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from paddock.errors import LibraryUnusable, PaddockError


def main() -> None:
    question, *rest = sys.argv[1:]
    on_gpu = rest[-1:] == ["gpu"]
    answer = _count(on_gpu=on_gpu) if question == "count" else _speed(Path(rest[0]), int(rest[1]), on_gpu=on_gpu)
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")


def _count(*, on_gpu: bool) -> dict[str, str]:
    """`refusal` is the error of a library that cannot be loaded."""
    try:
        from paddock.engine.trial import wrong_answer  # this loads the library

        return {"problem": wrong_answer(on_gpu=on_gpu) or ""}
    except LibraryUnusable as error:
        return {"refusal": error.message}
    except PaddockError as error:
        return {"problem": error.message}


def _speed(model: Path, threads: int, *, on_gpu: bool) -> object:
    from paddock.engine.trial import speed

    return speed(model, threads=threads, on_gpu=on_gpu)


if __name__ == "__main__":
    main()
