"""A harness whose drafts are right, wrong, or first right and then wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddock.scheduling import Request
from paddock.types import Sampled, Span
from tests.engine.harness import Harness
from tests.options import draft_params

MOST = 7


class GuessingHarness(Harness):
    """Adds drafts of any length to the spans that allow them. `right` has the answers that are known."""

    def __init__(self, model: Path, right: Mapping[int, list[int]], **options: Any) -> None:
        super().__init__(model, **options)
        self.right = right
        self.random = random.Random(0)
        self.drafted = self.accepted = 0
        self._requests: dict[int, Request] = {}
        self._decode, self.engine.decode = self.engine.decode, self._guess  # type: ignore[method-assign]

    def _guess(self, spans: Sequence[Span], **kwargs: Any) -> list[Sampled | None]:
        for span in spans:
            if span.drafting is not None:
                text = self._text(span)
                length = self.random.randint(0, span.drafting.params.lookup)
                good = self.random.randint(0, length)
                span.draft = text[:good] + [self.random.randrange(5, 40) for _ in range(length - len(text[:good]))]
                span.draft_source = "ngram"
        results = self._decode(spans, **kwargs)
        self.drafted += sum(result.drafted for result in results if result is not None)
        self.accepted += sum(len(result.more) for result in results if result is not None)
        return results

    def _text(self, span: Span) -> list[int]:
        """The tokens that will follow."""
        assert span.drafting is not None
        for id, answer in self.right.items():
            if self._requests[id].tokens is span.drafting.tokens:
                return answer[self._requests[id].produced :]
        raise AssertionError("an unknown request")

    def ask(self, id: int, *args: Any, **kwargs: Any) -> Request:
        self._requests[id] = super().ask(id, *args, **{"draft": draft_params(lookup=MOST)} | kwargs)
        return self._requests[id]
