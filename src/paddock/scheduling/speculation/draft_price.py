"""What it costs to verify drafted tokens, measured, and how many of them pay."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

# Costs are relative to a step without drafts. Before anything is measured, a drafted token costs this part of a step
# with one answer, as much as another answer does.
_ASSUMED = 0.25
_ASSUMED_WEIGHT = 2.0
# So many of the last measurements count.
_MEMORY = 24
_PLAIN_MEMORY = 7
# A step that took longer than this many times as expected was disturbed, and counts as this much.
_DISTURBED = 3.0
# So many steps without drafts are measured first, and one again after so many with drafts for each that was measured.
_PLAIN_FIRST, _PLAIN_AGAIN = 6, 7
# The first drafts have so many tokens, and later ones at most twice as many as were measured.
_FIRST_DRAFTED = 4
# Drafts must be expected to save at least this part of the time.
_MARGIN = 0.02
# This part of the time may be lost by drafts that do not pay. It is also the time for finding out whether they do now.
_ALLOWANCE = 0.005
# Where drafts do not seem to pay, some are tried after so many steps: sooner while little was measured. They must have
# at least this chance.
_TRY_SOON, _TRY_LATER, _FIRST_TRIES = 16, 128, 8
_TRIED, _TRIED_CHANCE = 4, 0.2
# At most the time of so many steps can be saved up to be lost later, and at most so many must be made up for.
_MOST_SAVED, _FIRST_SAVED, _MOST_OWED = 6.0, 3.0, 2.0


class _Recent:
    """A typical one of the last values, rather too low than too high: other load on the machine makes some steps many
    times as long, and none shorter.
    """

    __slots__ = ("_values", "value")

    def __init__(self, memory: int = _MEMORY) -> None:
        self._values: deque[float] = deque(maxlen=memory)
        self.value = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        self.value = sorted(self._values)[len(self._values) // 3]

    @property
    def count(self) -> int:
        return len(self._values)


@dataclass(slots=True)
class _Plain:
    """Steps with a certain number of answers and without drafts."""

    seconds: _Recent = field(default_factory=lambda: _Recent(_PLAIN_MEMORY))
    drafted: int = 0
    """Steps with drafts since the last one without."""


class DraftPrice:
    """A step with `drafted` tokens takes `plain * (1 + cost * drafted)` seconds. The cost of a token is measured by the
    number of answers and of drafted tokens, because hardware computes some batch sizes much better than others.

    What drafts saved or lost by these costs is added up. While the sum is negative nothing is drafted, so that drafts
    take at most `_ALLOWANCE` of the time in the long run, however wrong their chances are.
    """

    def __init__(self) -> None:
        self._plain: dict[int, _Plain] = {}
        self._costs: dict[tuple[int, int], _Recent] = {}
        self._any_cost = _Recent()
        self._most_drafted = _FIRST_DRAFTED
        self._balance: float | None = None
        """Seconds that may be lost. None: nothing is known yet."""
        self._undrafted = 0
        """Steps since the last one with drafts."""

    def plain(self, answers: int) -> float:
        """Seconds of a step without drafts; 0: not known yet."""
        plain = self._plain.get(answers)
        return plain.seconds.value if plain is not None else 0.0

    def draft_seconds(self, answers: int, drafted: int) -> float:
        """How many seconds so many drafted tokens add to a step."""
        return self.plain(answers) * self._cost(answers, drafted) * drafted

    def count(self, answers: int, chances: Sequence[float]) -> int:
        """How many of the drafts to verify, of which each is right with this chance, the most likely first: so many
        that the most tokens per second are expected. 0: none.
        """
        plain = self._plain.get(answers)
        if plain is None or plain.seconds.count < _PLAIN_FIRST:
            return 0
        if plain.drafted >= _PLAIN_AGAIN * plain.seconds.count:
            return 0
        if self._balance is None or self._balance < 0:
            return 0
        best, best_rate = 0, answers * (1 + _MARGIN)
        expected = float(answers)
        for count, chance in enumerate(chances[: self._most_drafted], 1):
            expected += chance
            rate = expected / (1 + self._cost(answers, count) * count)
            if rate > best_rate:
                best, best_rate = count, rate
        if not best and self._undrafted >= (_TRY_SOON if self._any_cost.count < _FIRST_TRIES else _TRY_LATER):
            return sum(chance >= _TRIED_CHANCE for chance in chances[:_TRIED])
        return best

    def observe(self, answers: int, drafted: int, accepted: int, seconds: float) -> None:
        """A step without prompts, with so many drafted tokens, took so long."""
        plain = self._plain.setdefault(answers, _Plain())
        self._undrafted = 0 if drafted else self._undrafted + 1
        if not drafted:
            plain.drafted = 0
            plain.seconds.add(seconds)
            self._save(_ALLOWANCE * plain.seconds.value, plain.seconds.value)
            return
        plain.drafted += 1
        if usual := plain.seconds.value:
            expected = usual + self.draft_seconds(answers, drafted)
            cost = (min(seconds, _DISTURBED * expected) / usual - 1) / drafted
            self._most_drafted = max(self._most_drafted, 2 * drafted)
            self._costs.setdefault(_bucket(answers, drafted), _Recent()).add(cost)
            self._any_cost.add(cost * _scale(answers))
            # Without drafts, the accepted tokens would have taken more steps.
            saved = accepted * usual / answers - self.draft_seconds(answers, drafted)
            self._save(saved + _ALLOWANCE * usual, usual)

    def _save(self, seconds: float, step: float) -> None:
        balance = _FIRST_SAVED * step if self._balance is None else self._balance
        self._balance = min(max(balance + seconds, -_MOST_OWED * step), _MOST_SAVED * step)

    def _cost(self, answers: int, drafted: int) -> float:
        """Of one token. What was seldom measured is assumed to be like the rest."""
        usual = _weighted(self._any_cost, _ASSUMED) / _scale(answers)
        measured = self._costs.get(_bucket(answers, drafted))
        return max(usual if measured is None else _weighted(measured, usual), 0.0)


def _bucket(answers: int, drafted: int) -> tuple[int, int]:
    return answers.bit_length() if answers > 4 else -answers, drafted.bit_length()


def _scale(answers: int) -> float:
    """How many times as long a step with so many answers takes as one with a single answer, roughly."""
    return 1 + _ASSUMED * (answers - 1)


def _weighted(measured: _Recent, prior: float) -> float:
    return (measured.value * measured.count + prior * _ASSUMED_WEIGHT) / (measured.count + _ASSUMED_WEIGHT)
