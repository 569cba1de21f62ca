"""Where two answers differ, and what differs in what computed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paddock.receipts.receipt import Receipt

_CONTEXT = 24
_MISSING = "nothing"
# They name the other fields again, or say nothing about the bytes of the answer.
_DERIVED = frozenset({"fingerprint"})


@dataclass(frozen=True, slots=True)
class BytesDiffer:
    """The first byte that differs, and the text around it in both."""

    at: int
    ours: str
    theirs: str


def first_difference(ours: bytes, theirs: bytes) -> BytesDiffer | None:
    """None if they are the same."""
    if ours == theirs:
        return None
    at = first_place(ours, theirs)
    return BytesDiffer(at, _around(ours, at), _around(theirs, at))


def first_place(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """The first place where they differ; the length of the shorter one if it is the beginning of the other."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def _around(data: bytes, at: int) -> str:
    before, after = data[max(0, at - _CONTEXT) : at], data[at : at + _CONTEXT]
    return f"{before.decode(errors='replace')}▸{after.decode(errors='replace')}"


@dataclass(frozen=True, slots=True)
class AnswerDiffers:
    answer: int
    what: str
    """`prompt`, `tokens`, `text` or `finish_reason`."""
    token: int | None
    """The first token that differs, from 0."""
    there: str
    here: str

    def __str__(self) -> str:
        if self.token is not None:
            return f"answer {self.answer} differs at token {self.token}: {self.there} there, {self.here} here"
        return f"answer {self.answer} has another {self.what}: {self.there} there, {self.here} here"


@dataclass(frozen=True, slots=True)
class IdentityDiffers:
    path: str
    there: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.there)} there, {_shown(self.here)} here"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A receipt and the same request computed again."""

    answers: list[AnswerDiffers] = field(default_factory=list)
    identity: list[IdentityDiffers] = field(default_factory=list)

    @property
    def is_identical(self) -> bool:
        """Whether the answers are. The identity may differ all the same."""
        return not self.answers


def compare(there: Receipt, here: Receipt) -> Comparison:
    return Comparison(
        list(_answers(there, here)), [*_identity(there, here), *_paths("sampling", there.sampling, here.sampling)]
    )


def _answers(there: Receipt, here: Receipt) -> Iterator[AnswerDiffers]:
    if len(there.answers) != len(here.answers):
        count = min(len(there.answers), len(here.answers))
        yield AnswerDiffers(count, "number", None, str(len(there.answers)), str(len(here.answers)))
    for number, (old, new) in enumerate(zip(there.answers, here.answers, strict=False)):
        if (old.prompt_tokens, old.prompt_sha256) != (new.prompt_tokens, new.prompt_sha256):
            yield AnswerDiffers(number, "prompt", None, _prompt(old), _prompt(new))
        if old.tokens != new.tokens:
            at = first_place(old.tokens, new.tokens)
            yield AnswerDiffers(number, "tokens", at, _token(old.tokens, at), _token(new.tokens, at))
        elif old.text_sha256 != new.text_sha256:
            yield AnswerDiffers(number, "text", None, old.text_sha256, new.text_sha256)
        if old.finish_reason != new.finish_reason:
            yield AnswerDiffers(number, "finish_reason", None, old.finish_reason, new.finish_reason)


def _prompt(answer: Any) -> str:
    return f"{answer.prompt_tokens} tokens, {answer.prompt_sha256[:16]}…"


def _token(tokens: Sequence[int], at: int) -> str:
    return str(tokens[at]) if at < len(tokens) else "the end"


def _identity(there: Receipt, here: Receipt) -> Iterator[IdentityDiffers]:
    old, new = msgspec.to_builtins(there.identity), msgspec.to_builtins(here.identity)
    for name in old:
        if name not in _DERIVED:
            yield from _paths(name, old[name], new[name])


def _paths(path: str, there: Any, here: Any) -> Iterator[IdentityDiffers]:
    """The innermost values that differ."""
    if there == here:
        return
    if isinstance(there, dict) and isinstance(here, dict):
        for name in {**there, **here}:
            yield from _paths(f"{path}.{name}", there.get(name, _MISSING), here.get(name, _MISSING))
    elif isinstance(there, list) and isinstance(here, list) and _are_objects(there) and _are_objects(here):
        for place in range(max(len(there), len(here))):
            old, new = (each[place] if place < len(each) else _MISSING for each in (there, here))
            yield from _paths(f"{path}[{place}]", old, new)
    elif isinstance(there, list) and isinstance(here, list) and set(map(str, there)) != set(map(str, here)):
        # Long lists, such as instruction sets: what only one of them has.
        only_there, only_here = [one for one in there if one not in here], [one for one in here if one not in there]
        yield IdentityDiffers(path, only_there, only_here)
    else:
        yield IdentityDiffers(path, there, here)


def _are_objects(values: list[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return value if isinstance(value, str) and value else repr(value)
