"""Finished sequences that keep their cells: which of them leave, and when they are copied to host memory.

In unified cells, idle cells slow down every step. `CacheShape.idle_cells` of them are no burden. For more of them the
time by which steps are slower is counted as *rent*. A resident that is in host memory is reclaimed when its cells have
cost as much as restoring it would: so keeping it costs at most twice as much as the best decision would have.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from paddock.scheduling.prefix_tree import Match, Node
from paddock.scheduling.prices import Prices
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.sequences import Held, Resident
from paddock.scheduling.stored_prefixes import StoredPrefixes
from paddock.types import CacheShape, Forget, Save


class ResidentSequences(StoredPrefixes):
    """What `PrefixCache` knows about finished sequences. It also knows the running ones, because they share cells."""

    def __init__(self, shape: CacheShape, prices: Prices | None = None) -> None:
        super().__init__(shape)
        self._prices = prices or Prices()
        self._held: dict[int, Held] = {}
        self._residents: dict[int, Resident] = {}
        """The least recently used first."""
        self._idle: int | None = 0
        """Cells that only residents have. None: count them again."""
        self._checked_idle = True
        self._rent = 0.0
        """By how many seconds one idle cell has slowed down all steps so far."""
        self._rent_due = math.inf
        """At this rent a resident may have to go."""

    @property
    def idle_cells(self) -> int:
        if self._idle is None:
            self._idle = sum(resident.private for resident in self._residents.values())
            if self._shape.unified:
                running = {
                    node
                    for sequence, held in self._held.items()
                    if held.node is not None
                    for node in held.node.path()
                    if sequence in node.holders
                }
                self._idle += self._tree.hot_tokens - sum(len(node.tokens) for node in running)
        return self._idle

    @property
    def resident(self) -> Sequence[int]:
        return sorted(self._residents, key=lambda sequence: not self._residents[sequence].is_written_back)

    def touch(self, namespace: str | None, tokens: list[int]) -> Collection[int]:
        return () if namespace is None else self._touch(namespace, self._tree.match(namespace, tokens))

    def length(self, sequence: int) -> int:
        return len(self._residents[sequence].tokens)

    def reclaim(self, sequence: int) -> None:
        resident = self._residents[sequence]
        if self._is_worth_saving(resident, self._lost(resident, 0)):
            self._finish_write_back(sequence, resident)
        self._free(sequence)

    def reclaim_seconds(self, sequence: int) -> float:
        resident = self._residents[sequence]
        size, never_saved = self._shape.bytes_per_token, len(resident.tokens) - resident.goal
        lost = never_saved + self._lost(resident, 0)
        seconds = self._prices.again(lost, (len(resident.tokens) - lost) * size)
        if unsaved := self._unsaved_bytes(resident):
            saving = self._prices.save.seconds(unsaved) + self._prices.again(never_saved, resident.goal * size)
            seconds = min(seconds, saving)
        return seconds

    def move_seconds(self, length: int) -> float:
        if self._shape.forks_on_device:
            return 0.0  # as nothing beside a pass over the weights
        size = self.state_size(length)
        return self._prices.save.seconds(size) + self._prices.restore.seconds(size)

    def _is_worth_saving(self, resident: Resident, lost: int) -> bool:
        """`lost` tokens would have to be computed again."""
        size = self._unsaved_bytes(resident)
        if not size:
            return False
        is_worth = self._prices.is_worth_saving(lost, size, waiting=len(self._held) + 1)
        return is_worth or self._prices.goes_unnoticed(size)

    def _lost(self, resident: Resident, kept: int) -> int:
        """How many tokens would have to be computed again if a resident kept only so many in cells."""
        return resident.goal - max(kept, self._stored(resident))

    def _unsaved_bytes(self, resident: Resident) -> int:
        """The size of the copy that host memory lacks."""
        tokens = resident.goal - self._stored(resident)
        if tokens and not self._shape.saves_parts:
            tokens = len(resident.tokens)
        return tokens * self._shape.bytes_per_token

    @property
    def is_written_back(self) -> bool:
        """And a large buffer for that has been freed."""
        is_done = all(resident.is_written_back for resident in self._residents.values())
        return is_done and (bool(self._held) or not self._has_large_buffer)

    @property
    def next_write_back(self) -> int:
        part = next((self._part(one) for one in self._residents.values() if not one.is_written_back), 0)
        return part * self._shape.bytes_per_token

    def write_back_some(self) -> None:
        before = len(self._operations)
        for sequence, resident in self._residents.items():
            if resident.is_written_back:
                continue
            done = max(resident.written, self._stored(resident))
            resident.written = min(done + self._part(resident), resident.goal)
            self._save(sequence, resident, resident.written, evicts=False)
            is_saving = len(self._operations) > before
            if not is_saving:  # there is no room for it, and so none for what follows
                resident.written = resident.goal
            self._checked_idle &= not resident.is_written_back
            if is_saving:
                return
        if not self._held:
            self._release_buffer()

    def _part(self, resident: Resident) -> int:
        """How many tokens are copied at once."""
        if not self._shape.saves_parts:
            return len(resident.tokens)
        is_idle = not self._held
        return self._prices.save_tokens(self._shape.bytes_per_token, self._shape.max_copied, is_idle=is_idle)

    def write_back(self) -> None:
        for sequence, resident in self._residents.items():
            self._finish_write_back(sequence, resident)

    def charge_idle(self, seconds: float) -> None:
        self._rent += seconds

    def limit_idle(self) -> None:
        if not self._shape.unified or (self._checked_idle and self._rent < self._rent_due):
            return
        self._rent_due = math.inf
        for sequence, resident in list(self._residents.items()):
            if self.idle_cells <= self._shape.idle_cells:
                break
            due = resident.rent + self._prices.restore.per_unit * self._shape.bytes_per_token
            if self._rent < due:
                self._rent_due = min(self._rent_due, due)
            elif self._quota.budget and self._is_stored(resident):
                self._free(sequence)
        self._checked_idle = True

    def _stored(self, resident: Resident) -> int:
        """How many of the tokens that are worth a copy are in host memory."""
        return self._tree.match(resident.namespace, resident.tokens[: resident.goal]).stored()

    def _is_stored(self, resident: Resident) -> bool:
        """Whether host memory has all of it that is worth a copy."""
        return self._stored(resident) == resident.goal

    def _finish_write_back(self, sequence: int, resident: Resident) -> None:
        resident.written = resident.goal
        if resident.goal:
            self._save(sequence, resident, resident.goal, evicts=True)

    def _free(self, sequence: int) -> None:
        """Free the cells of a resident sequence."""
        resident = self._residents.pop(sequence)
        self._release(sequence, resident.node)
        self._operations.append(Forget(sequence))
        self._count_idle_again()

    def _drop_contained(self, sequence: int, node: Node) -> None:
        """Free the residents whose tokens are all tokens of this one."""
        path = set(node.path())
        for other in [id for id, it in self._residents.items() if id != sequence and it.node in path]:
            self._free(other)

    def _count_idle_again(self) -> None:
        self._idle, self._checked_idle = None, False

    def _touch(self, namespace: str, match: Match) -> Collection[int]:
        """Returns the residents that have the hot part of the match."""
        self._tree.touch(match.nodes)
        self._quota.touch(tenant_of(namespace))
        end = next((node for node in reversed(match.nodes) if node.holders), None)
        touched = self._residents.keys() & (end.holders if end is not None else ())
        for sequence in touched:
            resident = self._residents[sequence] = self._residents.pop(sequence)
            resident.rent = self._rent
        return touched

    def _release(self, sequence: int, node: Node) -> None:
        """Free a sequence's cells. Where another sequence has duplicates of them, these become the shared cells."""
        self._take_over(self._tree.release(sequence, node))

    def _trim(self, sequence: int, node: Node, namespace: str, tokens: list[int]) -> Node:
        """Free the cells of a sequence except those of these first tokens. Returns its new last node."""
        node, new_holders = self._tree.trim(sequence, node, namespace, tokens)
        self._take_over(new_holders)
        return node

    def _take_over(self, new_holders: Iterable[tuple[int, int]]) -> None:
        """So many duplicates of these sequences are shared cells now."""
        for new_holder, count in new_holders if self._shape.unified else ():
            (self._held.get(new_holder) or self._residents[new_holder]).private -= count

    def _save(self, sequence: int, resident: Resident, end: int, *, evicts: bool) -> None:
        """Copy its first `end` tokens to host memory."""
        self._store(
            resident.namespace,
            resident.tokens[:end],
            lambda start, end, span: Save(sequence, start, end, span),
            through=self._shape.saved_through(len(resident.tokens)),
            evicts=evicts,
        )
