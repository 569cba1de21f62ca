"""Why a prompt was not cached: what the scheduler found, in words.

The engine thread only notes token ids (`Explanation.begin`). The text is made by the thread that reads the report, and
only if one does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from itertools import count

import msgspec

from paddock.engine import Vocab
from paddock.scheduling import Request
from paddock.text import Difference, Place, difference, first_word, place_of
from paddock.types import (
    CacheReason,
    CacheReport,
    ChatPrompt,
    GenerateRequest,
    Nearest,
    PartingPlace,
    ReportView,
    ReusedTokens,
)
from paddock.wire.messages import Delta
from paddock.worker.logs import log_error
from paddock.worker.prompt_history import PromptHistory

_MOST_REPORTS, _MOST_REPORTED = 16, 1 << 18
"""The reports for the live view: at most so many, about prompts of so many tokens in all."""
_WINDOW = 32
"""Tokens after the difference that are turned into text."""


class Names:
    """The names of a vocabulary's tokens. Thread-safe."""

    def __init__(self, vocab: Vocab, size: int) -> None:
        self.bos = vocab.bos
        self._size = size
        self._name = lru_cache(maxsize=65536)(vocab.name)

    def text(self, tokens: Iterable[int]) -> bytes:
        # A restored file may contain any number, and native code would crash.
        return b"".join(self._name(token) for token in tokens if 0 <= token < self._size)


class Explanation:
    """What is known about one prompt and the cache. All answers to the prompt share it."""

    def __init__(
        self,
        request: GenerateRequest,
        tokens: list[int],
        text: str | None,
        names: Names,
        earlier: Nearest,
    ) -> None:
        """`text` is the rendered prompt, if it is not made of token ids. `earlier` is from the history of prompts."""
        self.request = request
        self.earlier = earlier
        self._tokens = tokens
        self._text = text
        self._names = names
        self._nearest = Nearest()
        self._reused = ReusedTokens()
        self._is_off = False
        self._is_begun = False
        self._untaken: list[int] = tokens
        self._wording = threading.Lock()
        self._report: CacheReport | None = None

    @property
    def size(self) -> int:
        return len(self._tokens)

    def take_tokens(self) -> list[int]:
        """The tokens of the prompt, once."""
        tokens, self._untaken = self._untaken, []
        return tokens

    def begin(self, request: Request) -> bool:
        """The first answer begins: note what the scheduler found. False: another answer began before."""
        if self._is_begun:
            return False
        self._nearest, self._reused = request.nearest, request.reused
        self._is_off = request.namespace is None
        self._is_begun = True
        return True

    def report(self) -> CacheReport:
        """Any thread may call it."""
        with self._wording:
            if self._report is None:
                self._report = self._make()
                self._tokens, self._text = [], None
            return self._report

    def _make(self) -> CacheReport:
        size, reused = len(self._tokens), self._reused
        known = max(self._nearest.length, self.earlier.length)
        # The last token of a prompt is always computed.
        evicted = max(min(known, size - 1) - max(self._nearest.length, reused.total), 0)
        not_reusable = max(min(self._nearest.length, size - 1) - reused.total, 0)
        parted = None
        if 0 < known < size and not self._is_off:
            try:
                parted = self._parting()
            except Exception:  # of a template or a vocabulary that nobody thought of: the numbers are right anyway
                log_error("cannot word a cache report", request_id=self.request.request_id)
        place, words = parted if parted is not None else (None, "")
        reason = self._reason(known, evicted, not_reusable, has_parted=place is not None)
        return CacheReport(
            summary=f"{reused.total} of {size} prompt tokens reused{_tiers(reused)}. {_SENTENCES[reason]}{words}",
            reason=reason,
            prompt_tokens=size,
            reused=reused,
            computed=size - reused.total,
            evicted=evicted,
            not_reusable=not_reusable,
            parted=place,
        )

    def _reason(self, known: int, evicted: int, not_reusable: int, *, has_parted: bool) -> CacheReason:
        """The reason for most of the computed tokens."""
        new = len(self._tokens) - known
        if self._is_off:
            return "off"
        if evicted > max(not_reusable, new):
            return "evicted"
        if not_reusable > max(evicted, new):
            return "not_reusable"
        if has_parted:
            return "changed"
        if known >= len(self._tokens) - 1:  # the last token is read from no file, because it is computed anyway
            return "hit"
        return "extended" if known else "new"

    def _parting(self) -> tuple[PartingPlace, str] | None:
        """Where the prompt differs from the nearest known one, and a sentence about it."""
        near, is_readable = self._nearest, bool(self.request.origin.tenant) or not self.request.origin.key
        if self.earlier.length >= near.length and self.earlier.following:
            near, is_readable = self.earlier, True
        elif self.earlier.length > near.length:
            return None
        if not near.following:
            return None
        at = near.length
        before = self._names.text(self._tokens[:at])
        own = (before + self._names.text(self._tokens[at : at + _WINDOW])).decode("utf-8", "replace")
        known = (before + self._names.text(near.following)).decode("utf-8", "replace")
        shared = len(before.decode("utf-8", "replace"))
        added = self._added(own, shared)
        found = difference(own[added:], known[added:] if is_readable else None, max(shared - added, 0))
        position = found.shared if self._text is None else min(found.shared, len(self._text))
        place = self._place(position)
        parting = PartingPlace(at, position, place.message, place.tool, found.text, found.known)
        return parting, f" {_where(place, position)}: {_words(found)}"

    def _added(self, own: str, size: int) -> int:
        """Characters that the tokenizer added in front of the prompt: the name of the BOS token, and a space."""
        bos = len(self._names.bos)
        candidates = (0, bos, 1, bos + 1) if self._text is not None else ()
        # The last character may be cut.
        fits = (added for added in candidates if own[added : size - 1] == (self._text or "")[: size - 1 - added])
        return next(fits, 0)

    def _place(self, position: int) -> Place:
        prompt = self.request.prompt
        if self._text is None or not isinstance(prompt, ChatPrompt):
            return Place()
        return place_of(self._text, prompt.messages, [tool.name for tool in prompt.tools], position)


def group_of(request: GenerateRequest, *, deterministic: bool) -> str:
    """Prompts are compared within such a group only: of a tenant, or of one key if it has none."""
    owner = request.origin.tenant or f"\0{request.origin.key}"
    return f"{owner}\0{deterministic}\0{request.adapters}"


_SENTENCES: dict[CacheReason, str] = {
    "hit": "The whole prompt is known.",
    "extended": "It goes on where the known prompt ends.",
    "changed": "It differs from the nearest known prompt.",
    "evicted": "Most of it was known, but has been evicted.",
    "not_reusable": "Most of it is cached, but this model cannot reuse it from there.",
    "new": "No known prompt begins like this one.",
    "off": "The cache is not used for this request.",
}


def _tiers(reused: ReusedTokens) -> str:
    counts = {"cells": reused.cells, "host memory": reused.host, "disk": reused.disk}
    used = [f"{number} from {tier}" for tier, number in counts.items() if number]
    return f" ({', '.join(used)})" if used else ""


def _where(place: Place, position: int) -> str:
    if place.tool is not None:
        return f"Tool definition {place.tool}"
    if place.message is None:
        return f"Character {position} of the prompt"
    index, role, character = place.message.index, place.message.role, place.message.character
    name = "System message" if role == "system" and not index else f"Message {index} ({role})"
    if character is not None:
        return f"{name}, character {character}"
    return f"Tool calls of message {index} ({role})" if place.is_in_calls else f"Before message {index} ({role})"


def _words(found: Difference) -> str:
    if found.is_same_text:
        return f"the same text `{first_word(found.text)}` in other tokens."
    if found.known is None:
        return f"`{first_word(found.text)}` is new."
    own, known = first_word(found.text), first_word(found.known)
    if own == known:
        own, known = found.text, found.known
    return f"`{own}` against `{known}`."


class CacheReports:
    """Explains prompts, and keeps the last explanations for the live view. Used by one thread, except `views`."""

    def __init__(self, vocab: Vocab, n_vocab: int, *, deterministic: bool = False) -> None:
        """`deterministic`: all requests are."""
        self._names = Names(vocab, n_vocab)
        self._deterministic = deterministic
        self._history = PromptHistory()
        self._kept: deque[tuple[int, Explanation]] = deque()
        self._numbers = count(1)

    def explain(self, request: GenerateRequest, tokens: list[int], text: str | None) -> Explanation:
        """A request is about to be queued."""
        earlier = self._history.nearest(self._group(request), tokens) if request.cache_prompt else Nearest()
        return Explanation(request, tokens, text, self._names, earlier)

    def begun(self, explanation: Explanation) -> None:
        """Its prefill has begun."""
        kept = deque([*self._kept, (next(self._numbers), explanation)])
        while len(kept) > _MOST_REPORTS or (len(kept) > 1 and sum(one.size for _, one in kept) > _MOST_REPORTED):
            kept.popleft()
        self._kept = kept  # a reader on another thread has the old one

    def complete(self, delta: Delta, explanation: Explanation) -> Delta:
        """The last delta with its report."""
        assert delta.usage is not None, "with the last delta"
        usage = msgspec.structs.replace(delta.usage, cache_report=explanation.report())
        return msgspec.structs.replace(delta, usage=usage)

    def ended(self, explanation: Explanation) -> None:
        """An answer is complete, so its prompt was computed."""
        if (tokens := explanation.take_tokens()) and explanation.request.cache_prompt:
            self._history.add(self._group(explanation.request), tokens)

    def forget(self, tenant: str | None) -> None:
        """Forget the prompts of a tenant, or of all."""
        self._history.forget(lambda group: tenant is None or group.startswith(f"{tenant}\0"))
        kept = ((number, one) for number, one in self._kept if tenant not in (None, one.request.origin.tenant))
        self._kept = deque(kept)

    def views(self) -> list[ReportView]:
        """Any thread may call it."""
        return [
            ReportView(number, one.request.origin.key, one.request.origin.tenant, one.report())
            for number, one in self._kept
        ]

    def _group(self, request: GenerateRequest) -> str:
        return group_of(request, deterministic=request.deterministic or self._deterministic)
