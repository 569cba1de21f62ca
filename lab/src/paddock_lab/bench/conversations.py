"""What the clients of a load say: texts made up, or conversations from a file. Nobody is asked anything here."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddock_lab.bench.loads import Load
from paddock_lab.words import Message, user, words

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""As files in ShareGPT's shape call them."""


@dataclass(frozen=True)
class Turn:
    said: Message
    output: int
    """Tokens of the answer that is asked for."""
    leave_after: int | None = None
    """The client goes away after so many tokens."""


@dataclass(frozen=True)
class Conversation:
    opening: tuple[Message, ...]
    """What stands before the first turn."""
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Recorded:
    """A conversation from a file; its answers are left out, since each server gives its own."""

    opening: tuple[Message, ...]
    said: tuple[Message, ...]


class Writer:
    """Texts for one load on one server in one round.

    What is drawn from `chance` is the same for every server; `tags` make the beginning of each text one that the server
    has not seen. `scale` shortens everything, to try things out.
    """

    def __init__(
        self, load: Load, *, chance: random.Random, tags: random.Random, words_per_token: float, scale: float
    ) -> None:
        self._load, self._chance, self._tags = load, chance, tags
        self._words_per_token, self._scale = words_per_token, scale

    def conversations(self, recorded: Sequence[Recorded] = ()) -> Iterator[Conversation]:
        """Without end; those of a file in random order, and once more from the beginning when all were taken."""
        load, chance = self._load, self._chance
        shared: tuple[Message, ...] = ()
        if load.shared_prefix:
            shared = ({"role": "system", "content": self._text(round(load.shared_prefix * self._scale))},)
        while True:
            for one in chance.sample(recorded, len(recorded)) if recorded else [self._made_up()]:
                begins_shared = shared and chance.random() < load.shared_share
                opening = (*shared, *one.opening) if begins_shared else one.opening
                yield Conversation(opening, tuple(self._turn(said) for said in one.said[: load.turns]))

    def long_prompts(self) -> Iterator[Conversation]:
        """What interferes with the others."""
        while True:
            said = user(self._text(max(1, round(self._load.interference * self._scale))))
            yield Conversation((), (Turn(said, self._load.interference_output),))

    def short(self) -> Conversation:
        return Conversation((), (Turn(user(self._text(1)), 2),))

    def _made_up(self) -> Recorded:
        lengths = [self._load.prompt, *([self._load.turn_prompt] * (self._load.turns - 1))]
        said = (user(self._text(length.draw(self._chance, self._scale))) for length in lengths)
        return Recorded((), tuple(said))

    def _turn(self, said: Message) -> Turn:
        output = self._load.output.draw(self._chance, self._scale)
        leaves = self._chance.random() < self._load.cancel_share
        return Turn(said, output, self._chance.randint(1, max(1, output - 1)) if leaves else None)

    def _text(self, tokens: int) -> str:
        return words(max(1, round(tokens * self._words_per_token)), tag=self._tags, rest=self._chance)


def from_file(path: Path) -> list[Recorded]:
    """JSON lines, or one JSON array, of objects with `messages` (`role`, `content`) or ShareGPT's `conversations`
    (`from`, `value`). Raises ValueError, which says what is wrong with which of them.
    """
    text = path.read_text("utf-8")
    if text.lstrip().startswith("["):
        found = json.loads(text)
    else:
        found = [_line(line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    recorded = [_recorded(said, number) for number, said in enumerate(found, 1)]
    kept = [one for one in recorded if one.said]
    if not kept:
        raise ValueError("nobody says anything in it")
    return kept


def _line(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as problem:
        raise ValueError(f"line {number} is no JSON: {problem}") from None


def _recorded(said: Any, number: int) -> Recorded:
    try:
        if "messages" in said:
            messages = [(each["role"], each["content"]) for each in said["messages"]]
        else:
            messages = [(_ROLES.get(each["from"], each["from"]), each["value"]) for each in said["conversations"]]
    except (KeyError, TypeError) as problem:
        raise ValueError(
            f"conversation {number} has neither `messages` nor `conversations` as they are: {problem!r}"
        ) from None
    if not all(isinstance(content, str) for _, content in messages):
        raise ValueError(f"conversation {number}: every message has a text as its content")
    opening = tuple({"role": role, "content": text} for role, text in messages if role == "system")
    return Recorded(opening, tuple(user(text) for role, text in messages if role == "user"))
