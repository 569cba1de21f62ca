"""The cache of models whose memory can be cut at any token: a prefix tree over cells and host memory.

A finished sequence is *resident*: it keeps its cells until another sequence needs them. A later request with the same
prefix shares or continues it. Meanwhile its tokens are copied to host memory, in parts between two steps or while
nothing runs, so that its cells can be reclaimed at no cost. In unified cells, idle cells slow down every step. So while
requests run, only `CacheShape.idle_cells` stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from paddock.scheduling.cache import Cache
from paddock.scheduling.cache_view import CacheView
from paddock.scheduling.plan import GRID
from paddock.scheduling.prefix_tree import Match, Node, PrefixTree
from paddock.scheduling.prices import Prices
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.sequences import Held, Resident
from paddock.scheduling.unwritten import UnwrittenSpans
from paddock.types import Adopt, CacheShape, Drop, Forget, Fork, Operation, Piece, Restore, Save

# Host memory is kept in spans of at most this many tokens. A span that two branches share is freed when both are gone,
# so this bounds what a branch can waste.
_SPAN = 256
# A stream can only be read whole. This is done for tokens that are at least this part of it.
_WORTH_READING = 1 / 4
# In the stream layout a copy on the device is preferred to a longer one from host memory, unless it lacks more than
# this part of it.
_WORTH_HOST = 1 / 8


class PrefixCache(Cache):
    def __init__(self, shape: CacheShape, prices: Prices | None = None) -> None:
        super().__init__(shape)
        self._prices = prices or Prices()
        self._tree: PrefixTree = PrefixTree()
        self._held: dict[int, Held] = {}
        self._residents: dict[int, Resident] = {}
        """The least recently used first."""
        self._idle: int | None = 0
        """Cells that only residents have. None: count them again."""
        self._checked_idle = True
        self._spans: dict[int, tuple[str, int]] = {}
        """Span → its tenant and its tokens."""
        self.unwritten = UnwrittenSpans()

    @property
    def stored(self) -> int:
        return self._quota.total

    @property
    def max_stored(self) -> int:
        """The most tokens in host memory."""
        return self._quota.budget

    @property
    def stored_bytes(self) -> int:
        return self.stored * self._shape.bytes_per_token

    @property
    def used(self) -> int:
        return self._private + (self._tree.hot_tokens if self._shape.unified else 0)

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

    def lookup(self, namespace: str | None, tokens: list[int], limit: int | None = None) -> int:
        if namespace is None:
            return 0
        return self._tree.match(namespace, tokens[:limit]).length

    def shared(self, namespace: str | None, tokens: list[int]) -> int:
        if namespace is None or not self._shape.unified:
            return 0
        return self._tree.match(namespace, tokens).hot()

    def stored_pieces(self, namespace: str, tokens: list[int]) -> list[Piece]:
        match = self._tree.match(namespace, tokens)
        return match.pieces(0, match.stored())

    def view(self, limit: int) -> CacheView:
        held = [held.node for held in self._held.values() if held.node is not None]
        return self._tree.view([*held, *(resident.node for resident in self._residents.values())], limit)

    # ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: int, namespace: str | None, tokens: list[int], limit: int) -> int:
        assert sequence not in self._held, f"sequence {sequence} is running"
        self._count_idle_again()
        if namespace is None:
            if sequence in self._residents:
                self.reclaim(sequence)
            self._held[sequence] = Held(None, None)
            return 0
        if sequence in self._residents:
            if length := self._continue(sequence, namespace, tokens, limit):
                return length
            self.reclaim(sequence)
        match = self._tree.match(namespace, tokens)
        self._touch(namespace, match)
        held = self._held[sequence] = Held(namespace, None)
        length = self._load(sequence, match, 0, min(match.length, limit))
        held.node = self._tree.hold(sequence, namespace, match, length)
        held.private = 0 if self._shape.unified else length
        _count_hits(held.node)
        return length

    def is_restoring(self, sequence: int) -> bool:
        return sequence in self._held and self._held[sequence].is_restoring

    def restore_more(self, sequence: int, tokens: list[int], start: int, limit: int) -> int:
        held = self._held[sequence]
        assert held.namespace is not None, "it has a prefix"
        match = self._tree.match(held.namespace, tokens)
        length = self._load(sequence, match, start, max(min(match.length, limit), start))
        held.node = self._tree.hold(sequence, held.namespace, match, length)
        self._count_idle_again()
        return length - start

    def advance(self, sequence: int, tokens: list[int]) -> None:
        held = self._held[sequence]
        private = len(tokens)
        if held.node is not None:
            held.node, duplicates = self._tree.extend(sequence, held.node, tokens)
            private = duplicates if self._shape.unified else private
        held.private += private

    def grow(self, sequence: int, count: int) -> None:
        self._held[sequence].private += count

    def leave(self, sequence: int, tokens: list[int], stored: int) -> None:
        held = self._held.pop(sequence)
        self._count_idle_again()
        if held.namespace is None or held.node is None or not tokens:
            if held.node is not None:
                self._release(sequence, held.node)
            self._operations.append(Forget(sequence))
            return
        if len(tokens) > held.node.end:
            node, _ = self._tree.extend(sequence, held.node, tokens[held.node.end :])
        else:
            node = self._tree.trim(sequence, held.node, held.namespace, tokens)
        self._operations.append(Forget(sequence, len(tokens)))
        private = self._private_cells(sequence, node)
        goal = stored if self._quota.budget else 0
        written = min(self._tree.match(held.namespace, tokens).stored(), goal)
        if not self._shape.unified and goal - written < goal * _WORTH_READING:
            written = goal
        self._residents[sequence] = Resident(held.namespace, tokens, node, private, goal, written)
        self._drop_contained(sequence, node)

    def move(self, source: int, target: int, length: int) -> None:
        held = self._held.get(source)
        node = self._residents[source].node if held is None else held.node
        if node is not None:
            self._tree.rename(node, source, target)
        if held is None:
            self._residents = {target if id == source else id: it for id, it in self._residents.items()}
        else:
            self._held[target] = self._held.pop(source)
        self._operations += [Fork(source, target, length), Forget(source)]

    def _continue(self, sequence: int, namespace: str, tokens: list[int], limit: int) -> int:
        """Continue a resident sequence in its cells. Returns how many tokens it keeps; 0: another source has more."""
        resident = self._residents[sequence]
        match = self._tree.match(namespace, tokens)
        kept = resident.shared(namespace, tokens, limit)
        if not kept or kept < min(match.length, limit):
            return 0
        lost = resident.goal - max(kept, self._tree.match(namespace, resident.tokens).stored())
        if lost > resident.goal * _WORTH_READING:
            self._finish_write_back(sequence, resident)
        self._touch(namespace, match)
        del self._residents[sequence]
        node = self._tree.trim(sequence, resident.node, namespace, tokens[:kept])
        self._operations.append(Forget(sequence, kept))
        self._held[sequence] = Held(namespace, node, self._private_cells(sequence, node))
        _count_hits(node)
        return kept

    def _load(self, sequence: int, match: Match, start: int, length: int) -> int:
        """Give a sequence with `start` tokens up to `length` matched tokens. Returns how many it has."""
        held = self._held[sequence]
        held.is_restoring = False
        hot = max(min(match.hot(), length), start)
        least = self._shape.min_copied
        if self._shape.unified:
            length = min(length, hot + max(self.free, 0))
            if length - hot < least or not self._pays(length - hot):
                length = hot
            most = self._prices.restore_tokens(self._shape.bytes_per_token, self._shape.max_restored)
            if length - hot > most and len(self._held) > 1:
                length, held.is_restoring = hot + most, True
            sources = match.sources(hot)
        else:
            # A stream has cells of its own, so everything comes from one source.
            stored = min(match.stored(), length)
            if stored and not self._pays(stored):
                stored, hot = 0, hot // GRID * GRID
            lacking = stored * _WORTH_HOST if self._shape.forks_on_device else 0
            if stored - hot > lacking or (stored >= hot and not self._shape.forks_on_device):
                hot, length = 0, stored
            else:
                length = hot
            if length < least:
                return 0
            sources = [(holder, 0, hot) for holder, _, _ in match.sources(hot)[-1:]]
        self._operations += [Fork(holder, sequence, end, max(at, start)) for holder, at, end in sources if end > start]
        if length > hot:
            self._operations.append(Restore(sequence, hot, match.pieces(hot, length)))
            self.restored += length - hot
        return length

    def _pays(self, tokens: int) -> bool:
        """Whether tokens are restored faster than computed."""
        return self._prices.is_worth_restoring(tokens, tokens * self._shape.bytes_per_token)

    def _private_cells(self, sequence: int, node: Node) -> int:
        """The private cells of a sequence whose tokens are all in the tree, down to this node."""
        if not self._shape.unified:
            return node.end
        return sum(len(part.tokens) for part in node.path() if sequence in part.duplicates)

    def _release(self, sequence: int, node: Node) -> None:
        """Free a sequence's cells. Where another sequence has duplicates of them, these become the shared cells."""
        for new_holder, count in self._tree.release(sequence, node):
            if self._shape.unified:
                owner = self._held.get(new_holder) or self._residents[new_holder]
                owner.private -= count

    def _touch(self, namespace: str, match: Match) -> None:
        self._tree.touch(match.nodes)
        self._quota.touch(tenant_of(namespace))
        for sequence in self._residents.keys() & (match.nodes[-1].holders if match.nodes else ()):
            self._residents[sequence] = self._residents.pop(sequence)

    # ── resident sequences ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def resident(self) -> Sequence[int]:
        return sorted(self._residents, key=lambda sequence: not self._residents[sequence].is_written_back)

    def home(self, namespace: str | None, tokens: list[int]) -> int | None:
        """The one that shares most, if that is more than half of it and as much as any other source has."""
        if namespace is None or self._shape.unified:
            return None
        limit = len(tokens) - 1
        kept, home = max(
            ((it.shared(namespace, tokens, limit), id) for id, it in self._residents.items()),
            default=(0, -1),
        )
        if not kept or kept < self.lookup(namespace, tokens, limit):
            return None
        return home if 2 * kept > len(self._residents[home].tokens) else None

    def touch(self, namespace: str | None, tokens: list[int]) -> None:
        if namespace is not None:
            self._touch(namespace, self._tree.match(namespace, tokens))

    def length(self, sequence: int) -> int:
        return len(self._residents[sequence].tokens)

    def reclaim(self, sequence: int) -> None:
        self._finish_write_back(sequence, self._residents[sequence])
        self._free(sequence)

    @property
    def is_written_back(self) -> bool:
        return all(resident.is_written_back for resident in self._residents.values())

    @property
    def next_write_back(self) -> int:
        part = next((self._part(one) for one in self._residents.values() if not one.is_written_back), 0)
        return part * self._shape.bytes_per_token

    def write_back_some(self) -> None:
        before = len(self._operations)
        for sequence, resident in self._residents.items():
            while not resident.is_written_back:
                resident.written = min(resident.written + self._part(resident), resident.goal)
                self._save(sequence, resident.namespace, resident.tokens[: resident.written], evicts=False)
                self._checked_idle &= not resident.is_written_back
                if len(self._operations) > before:  # a part may be stored already, or find no room
                    return

    def _part(self, resident: Resident) -> int:
        """How many tokens are copied at once. A stream can only be read whole, so its part is all of it."""
        if not self._shape.unified:
            return len(resident.tokens)
        return self._prices.save_tokens(self._shape.bytes_per_token, self._shape.max_copied)

    def write_back(self) -> None:
        for sequence, resident in self._residents.items():
            self._finish_write_back(sequence, resident)

    def limit_idle(self) -> None:
        if self._checked_idle or not self._shape.unified:
            return
        for sequence, resident in list(self._residents.items()):
            if self.idle_cells <= self._shape.idle_cells:
                break
            stored = self._tree.match(resident.namespace, resident.tokens[: resident.goal]).stored()
            if self._quota.budget and stored == resident.goal:
                self._free(sequence)
        self._checked_idle = True

    def _finish_write_back(self, sequence: int, resident: Resident) -> None:
        resident.written = resident.goal
        if resident.goal:
            self._save(sequence, resident.namespace, resident.tokens[: resident.goal], evicts=True)

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

    # ── host memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def adopt(self, namespace: str, tokens: list[int], state: Any, *, start: int = 0, has_file: bool = False) -> int:
        if self._quota.budget and self._tree.match(namespace, tokens).stored() >= start:
            shifted = lambda at, end, span: Adopt(state, at - start, end - start, span)  # noqa: E731
            self._store(namespace, tokens, shifted, has_file=has_file)
        return self._tree.match(namespace, tokens).stored()

    def erase(self, namespace: str, tokens: list[int], keep: int = 0) -> int:
        for sequence, resident in list(self._residents.items()):
            if resident.shared(namespace, tokens, len(tokens)) > keep:
                self._free(sequence)
        match = self._tree.match(namespace, tokens)
        if match.nodes and match.nodes[-1].end > match.length:
            return 0  # a longer prefix contains all of it
        before = match.stored()
        for span in self._tree.forget([node for node in match.nodes if node.start >= keep]):
            self.unwritten.forget_span(span)
            self._drop(span)
        return before - self._tree.match(namespace, tokens).stored()

    def _save(self, sequence: int, namespace: str, tokens: list[int], *, evicts: bool) -> None:
        self._store(namespace, tokens, lambda start, end, span: Save(sequence, start, end, span), evicts=evicts)

    def _store(
        self,
        namespace: str,
        tokens: list[int],
        copy: Callable[[int, int, int], Operation],
        *,
        evicts: bool = True,
        has_file: bool = False,
    ) -> None:
        """Store a prefix in host memory. `copy` makes the operation for each part that is missing, from its start, end
        and span. Unless it `evicts` others, only what is free is used.
        """
        path = self._tree.grow(namespace, self._tree.match(namespace, tokens), tokens)
        path = [part for node in path for part in (self._tree.cut(node, _SPAN) if node.stored is None else [node])]
        protected, tenant = set(path), tenant_of(namespace)
        copies: list[Operation] = []
        for index, node in enumerate(path):
            if node.stored is not None:
                continue
            has_room = self._quota.total + len(node.tokens) <= self._quota.budget
            if not has_room and not (evicts and self._make_room(tenant, len(node.tokens), protected)):
                for left in reversed(path[index:]):
                    self._tree.discard(left)
                del path[index:]
                break
            span = next(self._span_ids)
            copies.append(copy(node.start, node.end, span))
            self._tree.store(node, span)
            self._spans[span] = tenant, len(node.tokens)
            self._quota.add(tenant, len(node.tokens))
            if not has_file:
                self.unwritten.add(span, node)
        self._tree.touch(path)
        self._operations += copies  # after the evictions, so that the engine reads adjacent parts at once

    def _budget_of(self, ram_bytes: int) -> int:
        return ram_bytes // self._shape.bytes_per_token if self._shape.bytes_per_token else 0

    def _evict(self, tenant: str, protected: Collection[Node]) -> None:
        span = self._tree.evict(tenant, protected, self._held, self._residents)
        if span is not None:
            self._drop(span)

    def _drop(self, span: int) -> None:
        self.unwritten.drop(span)
        self._quota.remove(*self._spans.pop(span))
        self._operations.append(Drop(span))

    # ── integrity ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _private(self) -> int:
        running = sum(held.private for held in self._held.values())
        return running + sum(resident.private for resident in self._residents.values())

    def _count_used(self) -> int:
        hot = sum(len(node.tokens) for node in self._tree.nodes() if node.holders)
        return self._private + (hot if self._shape.unified else 0)

    def _count_stored(self) -> int:
        spans = {node.stored.span for node in self._tree.nodes() if node.stored is not None}
        return sum(self._spans[span][1] for span in spans)


def _count_hits(node: Node) -> None:
    for shared in node.path():
        shared.hits += 1
