"""How many prompt tokens go into the next step, from what the last ones took."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.3
_SMALLEST = 16
_BRIEFEST = 8
# Attention on the CPU takes queries in tiles of this many, a quarter faster than one by one.
_TILE = 64


@dataclass(slots=True)
class StepBudget:
    """Keeps a step that also computes prompts within `stretch` times a step that only generates.

    The price of a prompt token grows with its position and differs by model and machine, so it is measured, not set.
    """

    largest: int
    """What fits a batch."""
    usual: int = 512
    """What prompts get while no answer is under way, and more only as far as a step stays within `longest_seconds`:
    nobody who arrives can begin before it ends.
    """
    longest_seconds: float = 0.5
    stretch: float = 16.0
    """Answers take a sixteenth of the time while prompts are computed: a step with few of them is dear."""
    floor_seconds: float = 0.25
    """A pause that does no harm, so prompts need not be cut finer: small chunks cost more for each token."""
    brief_stretch: float = 1.5
    brief_seconds: float = 0.018
    """The same while others share the model than those whose prompts these are."""
    _generating: float = 0.0
    _token: float = 0.0

    def observe(self, *, decodes: int, prompt_tokens: int, seconds: float) -> None:
        if prompt_tokens == 0:
            self._generating = _blend(self._generating, seconds)
        elif prompt_tokens >= _BRIEFEST or not self._token:
            alone = self._generating if decodes else 0.0
            # Never below a twentieth of the whole: a step that took less than usual says nothing about its tokens.
            self._token = _blend(self._token, max(seconds - alone, seconds / 20) / prompt_tokens)

    def prompt_tokens(self, *, decodes: int, short: bool = False) -> int:
        """A big chunk while nobody waits for the next token of an answer; within the target otherwise, or when it is to
        be a `short` step.
        """
        if decodes == 0 and not short:
            affordable = int(self.longest_seconds / self._token) if self._token else 0
            return min(self.largest, max(self.usual, affordable))
        if not self._token:
            return min(_SMALLEST * 2, self.largest)
        target = max(self.floor_seconds, self.stretch * self._generating)
        return min(self.largest, _whole_tiles(max(_SMALLEST, int((target - self._generating) / self._token))))

    def brief_tokens(self) -> int:
        """A chunk that takes no more time than the answers of a step, for the sake of those whose prompt it is not."""
        target = max(self.brief_seconds, self.brief_stretch * self._generating)
        affordable = int((target - self._generating) / self._token) if self._token else 0
        return min(self.largest, max(_BRIEFEST, affordable))


def _whole_tiles(count: int) -> int:
    """Whole tiles and one token, as the first may go along with the answers; a quarter of a tile more at most."""
    tiles = (count + _TILE // 4) // _TILE
    return tiles * _TILE + 1 if tiles else count


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
