"""What it costs to verify drafted tokens, measured, and how many of them pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Costs are relative to a step without drafts. Before anything is measured, a drafted token costs this part of a step
# with one answer, as much as another answer does.
_ASSUMED = 0.25
_ASSUMED_WEIGHT = 2.0
# Old measurements are forgotten: about this many count.
_MEMORY = 24
_PLAIN_MEMORY = 6
# A step that took longer than this many times as expected was disturbed, and counts as this much.
_DISTURBED = 3.0
# So many steps without drafts are measured first, and one again after so many with drafts.
_PLAIN_FIRST, _PLAIN_AGAIN = 3, 48
# Drafts must be expected to save at least this part of the time.
_MARGIN = 0.02
# This part of the time may be lost by drafts that do not pay. It is also the time for finding out whether they do now.
_ALLOWANCE = 0.005
# Where drafts do not seem to pay, some are tried after so many steps: sooner while little was measured. They must have
# at least this chance.
_TRY_SOON, _TRY_LATER, _FIRST_TRIES = 16, 128, 8
_TRIED, _TRIED_CHANCE = 4, 0.2
# At most the time of so many steps can be saved up to be lost later.
_MOST_SAVED, _FIRST_SAVED = 6.0, 3.0


class _Mean:
    """The mean of the last values."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float, memory: int) -> None:
        self.count = min(self.count + 1, memory)
        self.value += (value - self.value) / self.count


@dataclass(slots=True)
class _Plain:
    """Steps with a certain number of answers and without drafts."""

    seconds: _Mean
    drafted: int = 0
    """Steps with drafts since the last one without."""


class DraftPrice:
    """A step with `drafted` tokens takes `plain * (1 + cost * drafted)` seconds. The cost of a token is measured by the
    number of answers and of drafted tokens, because hardware computes some batch sizes much better than others.

    What drafts saved or lost is added up. While the sum is negative nothing is drafted, so that drafts take at most
    `_ALLOWANCE` of the time in the long run, whatever the estimates say.
    """

    def __init__(self) -> None:
        self._plain: dict[int, _Plain] = {}
        self._costs: dict[tuple[int, int], _Mean] = {}
        self._any_cost = _Mean()
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
        if plain is None or plain.seconds.count < _PLAIN_FIRST or plain.drafted >= _PLAIN_AGAIN:
            return 0
        if self._balance is None or self._balance < 0:
            return 0
        best, best_rate = 0, answers * (1 + _MARGIN)
        expected = float(answers)
        for count, chance in enumerate(chances, 1):
            expected += chance
            rate = expected / (1 + self._cost(answers, count) * count)
            if rate > best_rate:
                best, best_rate = count, rate
        if not best and self._undrafted >= (_TRY_SOON if self._any_cost.count < _FIRST_TRIES else _TRY_LATER):
            return sum(chance >= _TRIED_CHANCE for chance in chances[:_TRIED])
        return best

    def observe(self, answers: int, drafted: int, accepted: int, seconds: float) -> None:
        """A step without prompts, with so many drafted tokens, took so long."""
        plain = self._plain.setdefault(answers, _Plain(_Mean()))
        usual = plain.seconds.value
        self._undrafted = 0 if drafted else self._undrafted + 1
        if not drafted:
            plain.drafted = 0
            plain.seconds.add(min(seconds, _DISTURBED * usual) if usual else seconds, _PLAIN_MEMORY)
            self._save(_ALLOWANCE * seconds, seconds)
            return
        plain.drafted += 1
        if not usual:
            return
        expected = usual + self.draft_seconds(answers, drafted)
        taken = min(seconds, _DISTURBED * expected)
        cost = (taken / usual - 1) / drafted
        self._costs.setdefault(_bucket(answers, drafted), _Mean()).add(cost, _MEMORY)
        self._any_cost.add(cost * _scale(answers), _MEMORY)
        # Without drafts, the accepted tokens would have taken more steps.
        self._save(accepted * usual / answers - (taken - usual) + _ALLOWANCE * usual, usual)

    def _save(self, seconds: float, step: float) -> None:
        balance = _FIRST_SAVED * step if self._balance is None else self._balance
        self._balance = min(balance + seconds, _MOST_SAVED * step)

    def _cost(self, answers: int, drafted: int) -> float:
        """Of one token. What was seldom measured is assumed to be like the rest."""
        usual = _weighted(self._any_cost, _ASSUMED) / _scale(answers)
        mean = self._costs.get(_bucket(answers, drafted))
        return max(usual if mean is None else _weighted(mean, usual), 0.0)


def _bucket(answers: int, drafted: int) -> tuple[int, int]:
    return answers.bit_length() if answers > 4 else -answers, drafted.bit_length()


def _scale(answers: int) -> float:
    """How many times as long a step with so many answers takes as one with a single answer, roughly."""
    return 1 + _ASSUMED * (answers - 1)


def _weighted(mean: _Mean, prior: float) -> float:
    return (mean.value * mean.count + prior * _ASSUMED_WEIGHT) / (mean.count + _ASSUMED_WEIGHT)
