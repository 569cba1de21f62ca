"""What it costs to verify drafted tokens, measured, and how many of them pay."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

# Costs are relative to a step without drafts. Before anything is measured, a drafted token costs this part of a step
# with one answer, as much as another answer does.
_ASSUMED = 0.25
_ASSUMED_WEIGHT = 2.0
# The last so many measurements of a cost count. The speed of the machine changes by the second, but hardly how much
# longer a step takes with drafts.
_MEMORY = 48
# A step with drafts is compared with the median of so many steps without, all of them among the last so many steps.
_COMPARED, _RECENT = 3, 32
# A step with drafts that took less than this part of those was not faster: they were disturbed.
_DISTURBED = 0.85
# The time of a step without drafts is the median of so many.
_PLAIN_MEMORY = 7
# Costs are known after so many measurements. Until then, steps without drafts come first.
_KNOWN = 8
# One step without drafts follows so many with drafts, to compare them with. It costs little: it is the shortest step.
_PLAIN_AGAIN = 8
# The first drafts have so many tokens, and later ones at most twice as many as were measured.
_FIRST_DRAFTED = 2
# Drafts must be expected to save at least this part of the time.
_MARGIN = 0.02
# This part of the time may be lost by drafts that do not pay. It is also the time for finding out whether they do now.
_ALLOWANCE = 0.01
# Where drafts do not seem to pay, one token is tried after so many steps, and each time after twice as many as the time
# before.
_TRY_SOON, _TRY_LATE = 8, 128
# The first step without drafts after one with drafts takes longer where libllama plans its graph again, and records it
# for a GPU. Of the last so many such steps the median counts, if it is at least this part of a step. What took longer
# than by `_MOST_SWITCH` steps was disturbed.
_SWITCH_MEMORY, _LEAST_SWITCH, _MOST_SWITCH = 16, 0.05, 1.5
# The time of so many steps may be lost at first, and later at most that of so many that were saved.
_FIRST_SAVED, _MOST_SAVED = 3.0, 20.0


class Tile(NamedTuple):
    """A CPU computes a tile of rows in less time than half as many rows one by one (`token_cost.TILE`)."""

    drafted: int
    """With so many drafted tokens a step fills a tile."""
    seconds: float
    """How many seconds they add to the step, estimated from tiles of prompts."""


class _Recent:
    """The median of the last values."""

    __slots__ = ("_values", "value")

    def __init__(self, memory: int) -> None:
        self._values: deque[float] = deque(maxlen=memory)
        self.value = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        self.value = _median(self._values)

    @property
    def count(self) -> int:
        return len(self._values)


class Switch:
    """How much longer the first step without drafts takes, in steps: of a context, whatever made the drafts."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = _Recent(_SWITCH_MEMORY)

    def observe(self, longer: float) -> None:
        self._last.add(min(longer, _MOST_SWITCH))

    @property
    def cost(self) -> float:
        """0: no step is known to take longer."""
        return self._last.value if self._last.value >= _LEAST_SWITCH and self._last.count >= _COMPARED else 0.0


class _Plain:
    """Steps with a certain number of answers and without drafts."""

    __slots__ = ("_last", "drafted", "seconds")

    def __init__(self) -> None:
        self.seconds = _Recent(_PLAIN_MEMORY)
        self.drafted = 0
        """Steps with drafts since the last one without."""
        self._last: deque[tuple[int, float]] = deque(maxlen=_COMPARED)

    def add(self, step: int, seconds: float) -> None:
        self.drafted = 0
        self.seconds.add(seconds)
        self._last.append((step, seconds))

    def recent(self, step: int) -> list[float]:
        """The seconds of those that a step with this number can be compared with."""
        return [seconds for number, seconds in self._last if step - number <= _RECENT]


class DraftPrice:
    """A step with `drafted` tokens takes `plain * (1 + cost * drafted)` seconds. The cost of a token is measured by the
    number of answers and of drafted tokens, because hardware computes some batch sizes much better than others. Whole
    tiles have a cost of their own.

    Other load on the machine makes some steps many times as long, and all steps of some seconds a quarter longer. So
    only steps near each other are compared, and of all comparisons the median counts.

    What drafts saved or lost by these costs is added up. A draft may lose no more than was saved, and while the sum is
    negative nothing is drafted. So drafts take at most `_ALLOWANCE` of the time in the long run, however wrong their
    chances are.
    """

    def __init__(self, switch: Switch | None = None, *, least_tried: float = 0.5, most_cost: float = 1.5) -> None:
        """`switch` is shared by all prices of a context. Where drafts do not seem to pay, one is tried at times, if it
        has at least the chance `least_tried`. No token costs more than `most_cost` steps: what took longer was
        disturbed.
        """
        self._switch = switch or Switch()
        self._least_tried, self._most_cost = least_tried, most_cost
        self._plain: dict[int, _Plain] = {}
        self._costs: dict[tuple[int, int], _Recent] = {}
        self._any_cost = _Recent(_MEMORY)
        self._tile_costs: dict[int, _Recent] = {}
        """Of all drafted tokens of a tile, by the number of answers."""
        self.tile = Tile(0, 0.0)
        """Of this step. 0 tokens: there is none."""
        self._most_drafted = _FIRST_DRAFTED
        self._saved = _FIRST_SAVED
        """In steps without drafts."""
        self._step = 0
        self._undrafted = 0
        """Steps since the last one with drafts."""
        self._wait = _TRY_SOON
        self._was_drafted = self._is_own = False
        """Whether the last step had drafts, and whether they have this price."""

    def plain(self, answers: int) -> float:
        """Seconds of a step without drafts; 0: not known yet."""
        plain = self._plain.get(answers)
        return plain.seconds.value if plain is not None else 0.0

    def draft_seconds(self, answers: int, drafted: int) -> float:
        """How many seconds so many drafted tokens add to a step."""
        return self.plain(answers) * self._cost(answers, drafted)

    def count(self, answers: int, chances: Sequence[float]) -> int:
        """How many of the drafts to verify, of which each is right with this chance, the most likely first: so many
        that the most tokens per second are expected. 0: none.
        """
        plain = self._plain.get(answers)
        if plain is None or self._saved < 0:
            return 0
        # The first of the steps without drafts is no comparison where it takes longer.
        if plain.drafted >= (2 * _PLAIN_AGAIN if self._switch.cost else _PLAIN_AGAIN):
            return 0
        is_comparable = len(plain.recent(self._step + 1)) >= _COMPARED
        if self._any_cost.count < _KNOWN and not is_comparable:
            return 0
        best, best_rate = 0, answers * (1 + _MARGIN)
        expected = float(answers)
        switch = 0.0 if self._was_drafted else self._switch.cost
        for count, chance in enumerate(chances[: self._most_drafted], 1):
            cost = self._cost(answers, count) + switch
            if count > 1 and cost > self._saved + 1:
                break
            expected += chance
            rate = expected / (1 + cost)
            if rate > best_rate:
                best, best_rate = count, rate
        if 0 < self.tile.drafted <= len(chances):
            cost = self._tile_cost(answers) + switch
            rate = (answers + sum(chances[: self.tile.drafted])) / (1 + cost)
            if rate > best_rate and cost <= self._saved + 1:
                best = self.tile.drafted
        if best:
            self._wait = _TRY_SOON
        elif is_comparable and self._undrafted >= self._wait and chances and chances[0] >= self._least_tried:
            self._wait = min(2 * self._wait, _TRY_LATE)
            return 1
        return best

    def observe(self, answers: int, drafted: int, accepted: int, seconds: float) -> None:
        """A step without prompts, with so many drafted tokens, took so long."""
        self._step += 1
        plain = self._plain.setdefault(answers, _Plain())
        was_drafted, was_own = self._was_drafted, self._is_own
        self._was_drafted = self._is_own = drafted > 0
        if not drafted:
            self._undrafted += 1
            if was_drafted and self._observe_switch(plain, seconds):
                self._save(_ALLOWANCE - (self._switch.cost if was_own else 0.0))
                return
            plain.add(self._step, seconds)
            self._save(_ALLOWANCE)
            return
        self._undrafted = 0
        plain.drafted += 1
        if (ratio := self._ratio(plain, seconds)) is not None:
            self._observe_cost(answers, drafted, min(ratio - 1, self._most_cost * drafted))
        # Without drafts, the accepted tokens would have taken more steps.
        self._save(accepted / answers - self._cost(answers, drafted) + _ALLOWANCE)

    def observe_vain(self, answers: int, seconds: float) -> None:
        """A step took so long in which a draft model had no draft: it still computes the text, or is not sure enough.
        So what was tried is not known yet, and is tried again sooner.
        """
        self._step += 1
        self._undrafted = min(self._undrafted, _TRY_LATE * 3 // 4)
        plain = self._plain.setdefault(answers, _Plain())
        plain.drafted += 1
        # What this step took counts: the model may have to read much more than in those before.
        ratio = self._ratio(plain, seconds)
        cost = min(max(ratio - 1, 0.0), self._most_cost) if ratio is not None else _ASSUMED
        self._save(_ALLOWANCE - cost)

    def follow(self, *, drafted: bool) -> None:
        """The step before the next one had drafts, of this price or another one, or it had none."""
        self._was_drafted, self._is_own = drafted, self._is_own and drafted

    def _observe_switch(self, plain: _Plain, seconds: float) -> bool:
        """The first step without drafts took so long. Whether it says nothing about those after it."""
        before = self._switch.cost
        if (ratio := self._ratio(plain, seconds)) is None:
            return before > 0
        self._switch.observe(ratio - 1)
        return max(before, self._switch.cost) > 0

    def _ratio(self, plain: _Plain, seconds: float) -> float | None:
        """How many times as long as steps without drafts near it this step took. None: not known."""
        compared = plain.recent(self._step)
        ratio = seconds / _median(compared) if compared else 0.0
        return ratio if ratio >= _DISTURBED else None

    def _observe_cost(self, answers: int, drafted: int, cost: float) -> None:
        if drafted == self.tile.drafted:
            self._tile_costs.setdefault(answers, _Recent(_MEMORY)).add(cost)
            return
        self._most_drafted = max(self._most_drafted, 2 * drafted)
        self._costs.setdefault(_bucket(answers, drafted), _Recent(_MEMORY)).add(cost / drafted)
        self._any_cost.add(cost / drafted * _scale(answers))

    def interrupt(self, answers: int) -> None:
        """A step had a prompt, after which one of so many answers is another one. The more of them there are, the
        better steps before can still be compared with steps after it.
        """
        self._step += _RECENT // max(answers, 1)
        self.follow(drafted=False)

    def _save(self, steps: float) -> None:
        self._saved = min(self._saved + steps, _MOST_SAVED)

    def _cost(self, answers: int, drafted: int) -> float:
        """Of all drafted tokens, in steps without. What was seldom measured is assumed to be like the rest."""
        if drafted == self.tile.drafted:
            return self._tile_cost(answers)
        usual = _weighted(self._any_cost, _ASSUMED) / _scale(answers)
        measured = self._costs.get(_bucket(answers, drafted))
        return max(usual if measured is None else _weighted(measured, usual), 0.0) * drafted

    def _tile_cost(self, answers: int) -> float:
        plain = self.plain(answers)
        estimated = self.tile.seconds / plain if plain else 0.0
        measured = self._tile_costs.get(answers)
        return estimated if measured is None else max(_weighted(measured, estimated), 0.0)


def _median(values: Collection[float]) -> float:
    """The lower one of two: other load makes steps longer, and none shorter."""
    return sorted(values)[(len(values) - 1) // 2]


def _bucket(answers: int, drafted: int) -> tuple[int, int]:
    size = drafted if drafted <= 4 else 4 + (drafted - 1).bit_length()
    return answers.bit_length() if answers > 4 else -answers, size


def _scale(answers: int) -> float:
    """How many times as long a step with so many answers takes as one with a single answer, roughly."""
    return 1 + _ASSUMED * (answers - 1)


def _weighted(measured: _Recent, prior: float) -> float:
    return (measured.value * measured.count + prior * _ASSUMED_WEIGHT) / (measured.count + _ASSUMED_WEIGHT)
