"""How many prompt tokens go into the next step, from what the last ones took."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.3
_SMALLEST = 16


@dataclass(slots=True)
class StepBudget:
    """Keeps a step that also computes prompts within `stretch` times a step that only generates.

    The price of a prompt token grows with its position and differs by model and machine, so it is measured, not set.
    """

    largest: int
    stretch: float = 4.0
    floor_seconds: float = 0.04
    """Below this nobody notices, so prompts need not be cut finer."""
    _generating: float = 0.0
    _token: float = 0.0

    def observe(self, *, decodes: int, prompt_tokens: int, seconds: float) -> None:
        if prompt_tokens == 0:
            self._generating = _blend(self._generating, seconds)
        elif prompt_tokens >= _SMALLEST or not self._token:
            alone = self._generating if decodes else 0.0
            # Never below a twentieth of the whole: a step that took less than usual says nothing about its tokens.
            self._token = _blend(self._token, max(seconds - alone, seconds / 20) / prompt_tokens)

    def prompt_tokens(self, *, decodes: int) -> int:
        """All that fits a batch while nobody waits for the next token of an answer."""
        if decodes == 0:
            return self.largest
        if not self._token:
            return min(_SMALLEST * 2, self.largest)
        target = max(self.floor_seconds, self.stretch * self._generating)
        return max(_SMALLEST, min(self.largest, int((target - self._generating) / self._token)))


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
