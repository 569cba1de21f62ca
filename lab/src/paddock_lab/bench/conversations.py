"""The conversations of a load: synthetic texts, or conversations from a file. Sends no requests."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddock_lab.bench.loads import Load
from paddock_lab.words import Message, assistant, user, words

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""Role names in the ShareGPT format."""
_LETTERS_PER_TOKEN = 3.6
"""Of English text and code."""
_BEGUN = 0.2
"""The part of a text that is written again already: small models continue a text rather than follow an order."""


@dataclass(frozen=True)
class Turn:
    message: Message
    output: int
    """`max_tokens` of the request."""
    leave_after: int | None = None
    """The client disconnects after this many tokens."""


@dataclass(frozen=True)
class Conversation:
    opening: tuple[Message, ...]
    """Messages before the first turn."""
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Recorded:
    """A conversation from a file, without the answers."""

    opening: tuple[Message, ...]
    user_messages: tuple[Message, ...]


class Writer:
    """Texts for one load on one server in one round.

    Values drawn from `rng` are the same for every server. `tags` draws the first words of each text, so that the text
    is not in the server's cache. `scale` multiplies all lengths.
    """

    def __init__(
        self,
        load: Load,
        *,
        rng: random.Random,
        tags: random.Random,
        words_per_token: float,
        scale: float,
        document: str = "",
    ) -> None:
        """`document`: the text of `Load.document`."""
        self._load, self._rng, self._tags = load, rng, tags
        self._words_per_token, self._scale = words_per_token, scale
        self._document = document

    def conversations(self, recorded: Sequence[Recorded] = ()) -> Iterator[Conversation]:
        """Endless. Conversations of a file come in random order, again and again."""
        load, rng = self._load, self._rng
        shared: tuple[Message, ...] = ()
        if load.shared_prefix:
            shared = ({"role": "system", "content": self._text(round(load.shared_prefix * self._scale))},)
        while True:
            for one in rng.sample(recorded, len(recorded)) if recorded else [self._synthetic()]:
                begins_shared = shared and rng.random() < load.shared_share
                opening = (*shared, *one.opening) if begins_shared else one.opening
                yield Conversation(opening, tuple(self._turn(message) for message in one.user_messages[: load.turns]))

    def long_prompts(self) -> Iterator[Conversation]:
        """The long prompts of the interference."""
        while True:
            message = user(self._text(max(1, round(self._load.interference * self._scale))))
            yield Conversation((), (Turn(message, self._load.interference_output),))

    def short(self) -> Conversation:
        return Conversation((), (Turn(user(self._text(1)), 2),))

    def _synthetic(self) -> Recorded:
        if self._document:
            return self._edit()
        lengths = [self._load.prompt, *([self._load.turn_prompt] * (self._load.turns - 1))]
        messages = (user(self._text(length.draw(self._rng, self._scale))) for length in lengths)
        return Recorded((), tuple(messages))

    def _edit(self) -> Recorded:
        """A part of the document, to be written again with one word replaced. The answer is begun."""
        size = round(self._load.prompt.draw(self._rng, self._scale) * _LETTERS_PER_TOKEN / (1 + _BEGUN))
        start = self._rng.randrange(max(len(self._document) - size, 0) + 1)
        text = self._document[start : start + size]
        old = self._rng.choice(re.findall(r"[a-z]{5,}", text) or ["the"])
        new = words(1, tag=self._rng, rest=self._rng).split()[0]
        order = f"Write this text again, with {new} instead of {old}. Change nothing else."
        edited = text.replace(old, new)
        return Recorded(
            (user(f"{self._text(1)}\n\n{order}\n\n{text}"),), (assistant(edited[: round(len(edited) * _BEGUN)]),)
        )

    def _turn(self, message: Message) -> Turn:
        output = self._load.output.draw(self._rng, self._scale)
        leaves = self._rng.random() < self._load.cancel_share
        return Turn(message, output, self._rng.randint(1, max(1, output - 1)) if leaves else None)

    def _text(self, tokens: int) -> str:
        return words(max(1, round(tokens * self._words_per_token)), tag=self._tags, rest=self._rng)


def from_file(path: Path) -> list[Recorded]:
    """JSON lines, or one JSON array, of objects with `messages` (`role`, `content`) or ShareGPT's `conversations`
    (`from`, `value`). Raises ValueError that names the line or conversation.
    """
    text = path.read_text("utf-8")
    if text.lstrip().startswith("["):
        found = json.loads(text)
    else:
        found = [_line(line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    recorded = [_recorded(content, number) for number, content in enumerate(found, 1)]
    kept = [one for one in recorded if one.user_messages]
    if not kept:
        raise ValueError("it has no user message")
    return kept


def _line(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as problem:
        raise ValueError(f"line {number} is not JSON: {problem}") from None


def _recorded(content: Any, number: int) -> Recorded:
    try:
        if "messages" in content:
            messages = [(each["role"], each["content"]) for each in content["messages"]]
        else:
            messages = [(_ROLES.get(each["from"], each["from"]), each["value"]) for each in content["conversations"]]
    except (KeyError, TypeError) as problem:
        raise ValueError(
            f"conversation {number} has neither valid `messages` nor valid `conversations`: {problem!r}"
        ) from None
    if not all(isinstance(content, str) for _, content in messages):
        raise ValueError(f"conversation {number}: the content of every message must be a text")
    opening = tuple({"role": role, "content": text} for role, text in messages if role == "system")
    return Recorded(opening, tuple(user(text) for role, text in messages if role == "user"))
