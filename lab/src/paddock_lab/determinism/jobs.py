"""The jobs: prompts of several kinds and lengths, each with its own seed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paddock.seeds import seed_of
from paddock_lab.words import Message, assistant, user, words


@dataclass(frozen=True)
class Job:
    id: str
    kind: str
    messages: list[Message]
    seed: int
    seed_from: str
    """`chosen`, or `job id` for a seed that is derived from the id."""


_TOPICS = ("horses", "rain", "bread", "bridges", "tea", "the moon", "a lighthouse", "chess", "an old map", "wolves")
_PLACES = ("Bern", "Lisbon", "Nairobi", "Kyoto", "Quito", "Tromsø", "Łódź", "Samarkand")
_OTHER_LANGUAGES = (
    "Schreibe zwei Sätze über {} auf Deutsch.",
    "Écris une phrase élégante sur {} à {}.",
    "Напиши короткую сказку про {}.",
    "用中文写一句关于{}的话。🐎",
)
_BOOK = " ".join(f"Stable {n} holds {n + 3} horses and {n * 2} bales of hay." for n in range(40))
"""A prefix that many prompts share, for the prefix cache."""

Writer = Callable[[random.Random], list[Message]]


def _question(rng: random.Random) -> list[Message]:
    return [user(f"What should I know about {rng.choice(_TOPICS)} in {rng.choice(_PLACES)}?")]


def _list(rng: random.Random) -> list[Message]:
    return [user(f"List {rng.randint(3, 9)} words about {rng.choice(_TOPICS)} as a JSON array.")]


def _code(rng: random.Random) -> list[Message]:
    return [user(f"Write a Python function that counts {rng.choice(_TOPICS)} in a list of {rng.randint(2, 99)}.")]


def _language(rng: random.Random) -> list[Message]:
    return [user(rng.choice(_OTHER_LANGUAGES).format(rng.choice(_TOPICS), rng.choice(_PLACES)))]


def _book(rng: random.Random) -> list[Message]:
    return [user(f"{_BOOK} How many horses are in stable {rng.randrange(40)}?")]


def _long(rng: random.Random) -> list[Message]:
    return [user(f"{words(rng.randint(50, 500), tag=rng, rest=rng)}. Go on in the same way.")]


def _conversation(rng: random.Random) -> list[Message]:
    turns = [message for _ in range(rng.randint(1, 4)) for message in (*_question(rng), assistant("It depends."))]
    return [*turns, *_question(rng)]


_KINDS: dict[str, Writer] = {
    "question": _question,
    "list": _list,
    "code": _code,
    "other languages": _language,
    "shared beginning": _book,
    "long": _long,
    "conversation": _conversation,
}


def built_in(count: int) -> list[Job]:
    """The same jobs in every run. Chosen and derived seeds alternate."""
    kinds = list(_KINDS)
    found = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        found.append(_job(f"job-{number + 1:04}", kind, _KINDS[kind](random.Random(number)), number))
    return found


def from_file(path: Path) -> list[Job]:
    """One prompt per line: plain text, or in a `.jsonl` file an object with `messages` or `prompt`, optionally `id`."""
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    given: Sequence[tuple[str, list[Message]]] = [
        _read(line, number) if path.suffix == ".jsonl" else (f"job-{number + 1:04}", [user(line)])
        for number, line in enumerate(line for line in lines if line)
    ]
    if repeated := [id for id, count in Counter(id for id, _ in given).items() if count > 1]:
        raise ValueError(f"several prompts have the id {repeated[0]!r}")
    return [_job(id, "given", messages, number) for number, (id, messages) in enumerate(given)]


def _read(line: str, number: int) -> tuple[str, list[Message]]:
    try:
        content = json.loads(line)
        messages = content["messages"] if "messages" in content else [user(content["prompt"])]
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"prompt {number + 1} is not an object with `messages` or `prompt`: {problem}") from None
    return str(content.get("id", f"job-{number + 1:04}")), messages


def _job(id: str, kind: str, messages: list[Message], number: int) -> Job:
    derived = number % 2 == 1
    return Job(id, kind, messages, seed_of(id) if derived else number + 1, "job id" if derived else "chosen")
