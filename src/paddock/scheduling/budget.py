"""How many prompt tokens go into the next step, from the measured time of the last steps."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.3
_MIN_CHUNK = 16
_MIN_BRIEF = 8
# CPU attention computes queries in tiles of this many, a quarter faster than one by one.
_TILE = 64


@dataclass(slots=True)
class StepBudget:
    """Keeps a step with prompt tokens within `stretch` times the duration of a step that only generates.

    The cost of a prompt token grows with its position and differs by model and machine, so it is measured.
    """

    largest: int
    """The batch size."""
    usual: int = 512
    """Prompt tokens of a step while no request generates. More only if the step stays within `longest_seconds`,
    because a new request must wait for its end.
    """
    longest_seconds: float = 0.5
    stretch: float = 16.0
    """Generation gets a sixteenth of the time during prefill: a step with few prompt tokens is inefficient."""
    floor_seconds: float = 0.25
    """A pause of this length does no harm, so chunks need not be smaller: small chunks cost more per token."""
    brief_stretch: float = 1.5
    brief_seconds: float = 0.018
    """The same while other keys share the model."""
    _generating: float = 0.0
    _token: float = 0.0

    @property
    def generating(self) -> float:
        """Seconds of a step that only generates; 0: not known yet."""
        return self._generating

    def observe(self, *, decodes: int, prompt_tokens: int, seconds: float) -> float:
        """Returns the seconds that the prompt tokens took."""
        prompts = 0.0
        if prompt_tokens == 0:
            self._generating = _blend(self._generating, seconds)
        elif prompt_tokens >= _MIN_BRIEF or not self._token:
            alone = self._generating if decodes else 0.0
            # At least a twentieth of the step: one that was faster than usual says nothing about its prompt tokens.
            prompts = max(seconds - alone, seconds / 20)
            self._token = _blend(self._token, prompts / prompt_tokens)
        return prompts

    def prompt_tokens(self, *, decodes: int, short: bool = False) -> int:
        """A big chunk while no request generates. Otherwise, or for a `short` step, as many as keep the step within its
        target.
        """
        if decodes == 0 and not short:
            affordable = int(self.longest_seconds / self._token) if self._token else 0
            return min(self.largest, max(self.usual, affordable))
        if not self._token:
            return min(_MIN_CHUNK * 2, self.largest)
        target = max(self.floor_seconds, self.stretch * self._generating)
        return min(self.largest, _whole_tiles(max(_MIN_CHUNK, int((target - self._generating) / self._token))))

    def brief_tokens(self) -> int:
        """A chunk that takes about half as long as the generation in a step, while other keys share the model."""
        target = max(self.brief_seconds, self.brief_stretch * self._generating)
        affordable = int((target - self._generating) / self._token) if self._token else 0
        return min(self.largest, max(_MIN_BRIEF, affordable))


def _whole_tiles(count: int) -> int:
    """Round to whole tiles plus one token, up by at most a quarter of a tile."""
    tiles = (count + _TILE // 4) // _TILE
    return tiles * _TILE + 1 if tiles else count


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
