"""How many prompt tokens go into the next step, from the measured time of the last steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from paddock.scheduling.batch_rows import BatchRows
from paddock.scheduling.token_cost import TILE, GenerationCost, PromptCost

_LEAST_OBSERVED = 8
_LEAST_CHUNK = 16
_LEAST_BRIEF = 8
# The first chunk beside generation, while nothing is known about its cost.
_FIRST_CHUNK = 32
# One tile may take this many times as long as allowed if it computes so much more in that time than a smaller chunk.
# The second one holds where generation takes so little time that `floor_seconds` are allowed.
_TILE_STRETCH, _FLOOR_TILE_STRETCH = 3.2, 2.0
_TILE_GAIN = 1.5
# Prompts are computed together if that takes at most this part of the time: the prices are not exact.
_SAVES = 0.95
# At least this part of a step with one answer takes the same time with several.
_LEAST_CONSTANT = 0.1
# The end of a prompt is not cut off if the whole takes at most so many times as long as allowed.
_END_STRETCH = 1.25
# Short prompts wait for others for at most this part of what a filled tile saves them, and for this many seconds after
# the last one if no other is known to come.
_WAITED = 0.25
_LINGER = 0.005


@dataclass(slots=True)
class StepBudget:
    """Keeps a step with prompt tokens within `stretch` times the duration of a step that only generates.

    The cost of a prompt token grows with its position and differs by model and machine, so it is measured.
    """

    usual: int = 512
    """Prompt tokens of a step while no request generates. More only if the step stays within `longest_seconds`,
    because a new request must wait for its end.
    """
    longest_seconds: float = 0.5
    stretch: float = 10.0
    """Generation gets a tenth of the time during prefill: a step with few prompt tokens is inefficient."""
    short_stretch: float = 4.0
    """The same for short prompts that wait for one another: the sooner the first one is done, the better."""
    floor_seconds: float = 0.25
    """A pause of this length does no harm, so chunks need not be smaller: small chunks cost more per token on CPUs."""
    brief_stretch: float = 1.5
    brief_seconds: float = 0.018
    """The same while other keys share the model."""
    batch_seconds: float = 2.0
    """How long a step may take that has only lines of batches, if nobody else has asked for anything for a while."""
    unified: bool = False
    """Whether all sequences share one pool of cells."""
    pads: bool = False
    """Whether steps may be padded to a tile: tokens can be removed again, and a CPU computes them."""
    pass_rows: int = 0
    """How many rows a GPU computes in one pass. Each pass reads all weights and needs a new graph, so it costs much
    more than its rows. 0: a CPU, where it does not.
    """
    _prompts: PromptCost = field(init=False)
    _generation: GenerationCost = field(default_factory=GenerationCost)
    _batch_rows: BatchRows = field(init=False)

    def __post_init__(self) -> None:
        self._batch_rows = BatchRows(self.batch_seconds)
        self._prompts = PromptCost(unified=self.unified, pads=self.pads)

    def observe(self, *, answers: int, chunks: Sequence[tuple[int, int]], seconds: float, gaps: int = 0) -> float:
        """A step with so many generating requests and these prompt chunks, each a start and a count, took so long, with
        so many gaps between streams. Returns the seconds of the prompt tokens.
        """
        tokens = sum(count for _, count in chunks)
        if seconds <= 0:
            return 0.0
        if not tokens:
            # Without the further passes: what a step takes in one.
            self._generation.observe(answers, seconds - gaps * min(self.pass_seconds, seconds / (gaps + 1)))
            return 0.0
        self._batch_rows.observe(answers + tokens, seconds)
        if tokens < _LEAST_OBSERVED and self._prompts:
            return 0.0
        # At least a twentieth of the step: one that was faster than usual says nothing about its prompt tokens.
        prompts = max(seconds - self.generating(answers), seconds / 20)
        self._prompts.observe(chunks, prompts, answers=answers)
        return prompts

    def generating(self, answers: int) -> float:
        """Seconds of a step that only generates; 0: not known yet."""
        return self._generation.seconds(answers)

    def room(self, answers: int) -> int | None:
        """The prompt tokens of a step while nothing is known about their cost; None once something is known."""
        if self._prompts:
            return None
        return _FIRST_CHUNK if answers else self.usual

    def seconds_for_prompts(self, answers: int, position: int, *, short: bool = False) -> float:
        """How long the prompt chunks of a step may take, at about this position. `short`: the step is for short prompts
        that wait for one another.
        """
        if not answers and not short:
            return max(self.longest_seconds, self._prompts.seconds(position, self.usual))
        generating = self.generating(answers)
        return max(self.floor_seconds, (self.short_stretch if short else self.stretch) * generating) - generating

    def brief_seconds_for_prompts(self, answers: int) -> float:
        """About half as long as the generation in a step, while other keys share the model."""
        generating = self.generating(answers)
        return max(self.brief_seconds, self.brief_stretch * generating) - generating

    def seconds(self, position: int, count: int) -> float:
        """What a chunk takes."""
        return self._prompts.seconds(position, count)

    @property
    def batch_rows(self) -> int:
        """How many rows a step has that only has lines of batches. 0: as many as another one."""
        return 0 if self.pass_rows or not self._prompts.knows_tiles else self._batch_rows.count

    def missing_rows(self, rows: int) -> int:
        """How many rows of other sequences would fill the tile of a step with so many. 0: it is full, or rows of others
        do not help: with streams a tile has rows of one sequence.
        """
        return max(TILE - rows, 0) if self.unified and self._prompts else 0

    def padding(self, chunks: Sequence[tuple[int, int]], answers: int) -> int:
        """With how many more rows these chunks take less time beside so many answers. 0: with none."""
        return self._prompts.padding(chunks, answers)

    def saved_by_tile(self, chunks: Sequence[tuple[int, int]], answers: int) -> float:
        """How many seconds less these chunks take in a full tile than alone, beside so many answers. 0: they fill one
        themselves, or it saves nothing.
        """
        rows = sum(count for _, count in chunks) + answers
        if self.pass_rows or not self._prompts.knows_tiles or not self.missing_rows(rows):
            return 0.0
        alone, tiled = (self._prompts.seconds_together(chunks, answers=number) for number in (answers, TILE))
        return max(alone - tiled, 0.0)

    def cost_of_free_slots(self, free: int, answers: int) -> float:
        """How many seconds a step with so many answers takes longer for each of them than one with more, in all."""
        return self.pass_seconds * free / (answers + free)

    @property
    def pass_seconds(self) -> float:
        """The part of a step that generates that does not depend on the answers; 0: not known yet. Streams that are not
        adjacent take it once more.
        """
        one, two = self.generating(1), self.generating(2)
        return max(2 * one - two, _LEAST_CONSTANT * one)

    def draft_tile(self, answers: int, position: int) -> tuple[int, float] | None:
        """How many drafted tokens fill a tile with so many answers, at about this position, and how many seconds they
        take. None: a GPU, or not known yet.
        """
        if self.pass_rows or not self._prompts.knows_tiles or (answers > 1 and not self.unified):
            return None
        return TILE - answers, self._prompts.seconds(position, TILE)

    def is_better_together(
        self, chunks: Sequence[tuple[int, int]], more: Sequence[tuple[int, int]], seconds: float, *, answers: int
    ) -> bool:
        """Whether prompts end earlier on average if a step has `more` of them, which fill a tile, than if there is one
        step after the other with at most as many tokens as these, which are the first of `more`. So many seconds are
        allowed, beside so many answers.

        Every step also generates, in turn for more and more answers. Beside answers prompts seem cheaper than they are,
        because a part of what is taken for generation is saved: so whole steps are compared.
        """
        many = self._prompts.seconds_together(more, answers=answers)
        most = sum(count for _, count in chunks)
        now = in_turn = 0.0
        ended = 0
        while ended < len(more):
            step = _first_of(more[ended:], most) if ended else chunks
            now += self._prompts.seconds_together(step, answers=answers + ended) + self.generating(answers + ended)
            in_turn += now * len(step)
            ended += len(step)
        together = (many + self.generating(answers)) * len(more)
        return together < _SAVES * in_turn and many <= self._tile_seconds(seconds)

    def _tile_seconds(self, seconds: float) -> float:
        """How long one tile may take if so many seconds are allowed."""
        return seconds * (_TILE_STRETCH if seconds > self.floor_seconds else _FLOOR_TILE_STRETCH)

    def patience(self, chunks: Sequence[tuple[int, int]], waited: float, *, is_coming: bool) -> float:
        """For how many seconds a step for these prompts may wait for the next one, which may fill a tile with them. The
        first has `waited` so long. `is_coming`: another one is known to come. If not, one prompt does not wait, and
        several wait a moment: more may follow.
        """
        missing = self.missing_rows(sum(count for _, count in chunks))
        if not missing or len(chunks) + is_coming < 2:
            return 0.0
        alone = self._prompts.seconds_together(chunks)
        saved = alone - self._prompts.seconds_together(chunks, answers=missing)
        return max(min(_WAITED * saved - waited, math.inf if is_coming else _LINGER), 0.0)

    @property
    def seconds_per_cell(self) -> float:
        """How much longer a prompt token takes for each cell that attention reads."""
        return self._prompts.seconds_per_cell

    @property
    def has_equal_rows(self) -> bool:
        """Whether a pass has equally many rows of adjacent streams, as libllama computes streams on a GPU."""
        return self.pass_rows > 0 and not self.unified

    @property
    def fills_passes(self) -> bool:
        """Whether the rows of all requests fill the passes of a step one after the other."""
        return self.pass_rows > 0 and self.unified

    def is_worth_cutting(self, count: int, *, begun: bool) -> bool:
        """Whether to compute so many more tokens of a prompt, but not the rest, in a step that has some of this prompt
        (`begun`) or of others. With equal rows a short piece takes a pass of its own.
        """
        return not self.has_equal_rows or count >= (self.pass_rows if begun else self.pass_rows // 2)

    def whole_passes(self, tokens: int, answers: int) -> int:
        """About so many tokens that fill whole passes together with the answers: at most a quarter of a pass more. The
        same if they are too few.
        """
        passes = (tokens + answers + self.pass_rows // 4) // self.pass_rows
        whole = passes * self.pass_rows - answers
        return whole if passes and whole >= _LEAST_CHUNK else tokens

    def chunk(self, position: int, seconds: float, most: int, *, brief: bool = False, answers: int = 0) -> int:
        """How many of `most` tokens from `position` on to compute in so many seconds, beside so many answers. 0: not
        worth while. `brief`: rather too few than too many.
        """
        if not self._prompts:
            return most
        allowed = seconds * (1 if brief else _END_STRETCH)
        if self.seconds(position, most) <= allowed:
            return most
        if brief:
            count = self._brief_chunk(position, seconds)
        elif self.pass_rows:
            count = self._passes(position, seconds, answers)
        else:
            count = self._chunk(position, seconds, most)
        return min(count, most)

    def _passes(self, position: int, seconds: float, answers: int) -> int:
        """Whole passes if possible. With streams libllama computes the first token together with the answers."""
        rows = max(self._prompts.affordable(position, seconds, tiled=True), _LEAST_CHUNK)
        if self.unified:
            return self.whole_passes(rows, answers)
        whole = self.whole_passes(rows, 0)
        return whole + min(answers, 1) if whole % self.pass_rows == 0 else whole

    def _brief_chunk(self, position: int, seconds: float) -> int:
        tiles = self._prompts.affordable(position, seconds, tiled=True) // TILE * TILE
        rows = min(self._prompts.affordable(position, seconds, tiled=False), TILE - 1)
        return max(_LEAST_BRIEF, tiles, rows)

    def _chunk(self, position: int, seconds: float, most: int) -> int:
        """Whole tiles if possible, rounded up by at most a quarter of a tile. One token more, because libllama computes
        the first one together with the generated ones.
        """
        rows = min(max(self._prompts.affordable(position, seconds, tiled=False), _LEAST_CHUNK), TILE - 1)
        tiles = (self._prompts.affordable(position, seconds, tiled=True) + TILE // 4) // TILE
        if not tiles:
            if most < TILE:
                # What is left of the prompt is no tile.
                return most if self.seconds(position, most) <= self._tile_seconds(seconds) else rows
            in_rows, in_tile = self.seconds(position, rows), self.seconds(position, TILE)
            is_short = in_tile <= max(self._tile_seconds(seconds), in_rows)
            if not is_short or TILE * in_rows < _TILE_GAIN * rows * in_tile:
                return rows
        count = max(tiles, 1) * TILE + 1
        # What is left of the prompt should be a tile too.
        if 0 < most - count < TILE and (tiles > 1 or self.seconds(position, most) <= self._tile_seconds(seconds)):
            count = most - TILE if tiles > 1 else most
        return count


def _first_of(chunks: Sequence[tuple[int, int]], most: int) -> Sequence[tuple[int, int]]:
    """At least one chunk, and no more tokens than `most` in all if there are several."""
    totals = accumulate(count for _, count in chunks)
    return chunks[: max(sum(total <= most for total in totals), 1)]
