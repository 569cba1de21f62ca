"""The cache of models with windowed or recurrent layers: a prefix tree, and checkpoints of these layers.

Keys and values of the other layers can be cut, shared and copied at any token, as `prefix_cache.py` does it. What
windowed and recurrent layers know of a sequence exists only for the tokens it holds now. So it is copied to host memory
at chosen positions, and a sequence starts where there is such a checkpoint, or where another sequence stands.

A checkpoint belongs to a node of the tree and is dropped with it. Every resident sequence can be continued at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from typing import Any

from paddock.scheduling.cache import CacheCorrupted
from paddock.scheduling.checkpoints import Checkpoint, Start
from paddock.scheduling.prefix_cache import PrefixCache
from paddock.scheduling.prefix_tree import Match, Node
from paddock.scheduling.prices import Prices
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.sequences import Resident
from paddock.scheduling.stored_prefixes import SPAN
from paddock.scheduling.unwritten import StoredPath
from paddock.scheduling.unwritten_states import UnwrittenStates, is_wanted, stored_state
from paddock.types import (
    AdoptCheckpoint,
    CacheShape,
    CopyCheckpoint,
    Drop,
    Forget,
    LoadCheckpoint,
    Piece,
    SaveCheckpoint,
)

# So many system texts are remembered.
_MAX_BEGINNINGS = 1024


class CheckpointCache(PrefixCache):
    def __init__(self, shape: CacheShape, prices: Prices | None = None) -> None:
        self.unwritten_states = UnwrittenStates()
        super().__init__(shape, prices)
        self._checkpoints: dict[int, Checkpoint] = {}
        """The least recently used first."""
        self._generated: dict[int, int] = {}
        """Generated tokens of running sequences. What they know is not the state of their prompt any more."""
        self._unsaved: set[int] = set()
        """Residents whose last state is to be copied when there is time."""
        self._is_in_place = False
        """The last sequence continues all that a resident held."""
        self._beginnings: dict[int, None] = {}
        """Hashes of system texts, the least recently used first."""

    @property
    def stored(self) -> int:
        return self._quota.total - sum(checkpoint.cost for checkpoint in self._checkpoints.values())

    @property
    def stored_bytes(self) -> int:
        states = sum(checkpoint.bytes for checkpoint in self._checkpoints.values())
        return (self.stored + self._quota.reserved) * self._shape.bytes_per_token + self.aside + states

    def lookup(self, namespace: str | None, tokens: list[int], limit: int | None = None) -> int:
        if namespace is None:
            return 0
        return self._start(namespace, tokens, len(tokens) if limit is None else limit).length

    def shared(self, namespace: str | None, tokens: list[int]) -> int:
        if namespace is None or not self._shape.unified:
            return 0
        hot = self._tree.match(namespace, tokens).hot()
        return self._start(namespace, tokens, min(hot, len(tokens) - 1)).length

    def branch(self, namespace: str, tokens: list[int]) -> int:
        """How many of the first tokens are those of a known sequence, with or without a checkpoint at that point."""
        return self._tree.match(namespace, tokens).length

    def stored_pieces(self, namespace: str, tokens: list[int]) -> list[Piece]:
        """None: keys and values alone are not enough to continue."""
        return []

    # ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: int, namespace: str | None, tokens: list[int], limit: int) -> int:
        start = Start() if namespace is None else self._start(namespace, tokens, limit)
        self._is_in_place = False
        before = self.restored
        length = super().enter(sequence, namespace, tokens, start.length)
        if namespace is not None and length and not self._is_in_place:
            if length < start.length or (start.checkpoint and start.checkpoint not in self._checkpoints):
                # There were too few cells, or making room in host memory has evicted the checkpoint.
                start = self._start(namespace, tokens, length, without=sequence)
                length = self._cut(sequence, namespace, tokens[: start.length])
                self.restored = min(self.restored, before + length)
            self._complete(sequence, start)
        self._drop_orphans()
        return length

    def grow(self, sequence: int, count: int) -> None:
        super().grow(sequence, count)
        self._generated[sequence] = self._generated.get(sequence, 0) + count

    def take_snapshot(self, sequence: int) -> None:
        """Save a checkpoint of a sequence that is still in its prompt."""
        held = self._held[sequence]
        if held.namespace is not None and held.node is not None and sequence not in self._generated:
            self._save_checkpoint(sequence, held.node, evicts=True)

    def leave(self, sequence: int, tokens: list[int], stored: int) -> None:
        """If the sequence holds more than `tokens`, it stays up to the last checkpoint within them."""
        held, generated = self._held[sequence], self._generated.pop(sequence, 0)
        if held.namespace is not None and held.node is not None and 0 < len(tokens) < held.node.end + generated:
            start = self._start(held.namespace, tokens, len(tokens), without=sequence)
            tokens = tokens[: start.length]
            if tokens:
                self._operations.append(Forget(sequence, len(tokens)))
                self._complete(sequence, start)
        super().leave(sequence, tokens, min(stored, len(tokens)))
        if sequence in self._residents and self._residents[sequence].goal == len(tokens):
            self._unsaved.add(sequence)
        self._drop_orphans()

    def move(self, source: int, target: int, length: int) -> None:
        super().move(source, target, length)
        self._operations.insert(-1, CopyCheckpoint(source, target, length))
        if source in self._generated:
            self._generated[target] = self._generated.pop(source)
        if source in self._unsaved:
            self._unsaved.remove(source)
            self._unsaved.add(target)

    def _start(self, namespace: str, tokens: list[int], limit: int, *, without: int = -1) -> Start:
        """The longest prefix, at most `limit`, with which a sequence can start. `without`: a sequence whose own state
        is of no use.
        """
        match = self._tree.match(namespace, tokens)
        # A stream has cells of its own, so everything comes from one source.
        known = match.length if self._shape.unified else max(match.hot(), match.stored())
        limit = min(limit, known)
        live, source = self._live(match, limit, without)
        for node in reversed(match.nodes):
            if node.checkpoint and live <= node.end <= limit:
                return Start(node.end, node.checkpoint)
        return Start(live, sequence=source)

    def _live(self, match: Match, limit: int, without: int) -> tuple[int, int]:
        """The longest matched prefix, at most `limit`, that is all that a sequence holds, and that sequence."""
        ends = [(id, it.node) for id, it in self._held.items() if it.node is not None and id not in self._generated]
        ends += [(id, it.node) for id, it in self._residents.items()]
        path = {node for node in match.nodes if node.end <= limit}
        return max(((node.end, id) for id, node in ends if node in path and id != without), default=(0, -1))

    def _complete(self, sequence: int, start: Start) -> None:
        """Give a sequence that has the keys and values of a prefix what the other layers know of it."""
        if start.checkpoint:
            self._touch_checkpoint(start.checkpoint)
            self._operations.append(LoadCheckpoint(sequence, start.length, start.checkpoint))
        elif start.length:
            self._operations.append(CopyCheckpoint(start.sequence, sequence, start.length))

    def _cut(self, sequence: int, namespace: str, tokens: list[int]) -> int:
        """Cut a sequence that has just started to fewer tokens."""
        held = self._held[sequence]
        assert held.node is not None, "it has a namespace"
        if tokens:
            held.node = self._trim(sequence, held.node, namespace, tokens)
            held.private = self._private_cells(sequence, held.node)
        else:
            self._release(sequence, held.node)
            held.node, held.private = self._tree.hold(sequence, namespace, Match([], 0), 0), 0
        self._operations.append(Forget(sequence, len(tokens)))
        return len(tokens)

    def _reserve_for_fork(self, tokens: int, length: int, protected: Collection[Node]) -> bool:
        if self._shape.unified or length == tokens or not self._shape.snapshot.window:
            return super()._reserve_for_fork(tokens, length, protected)
        return self._reserve(tokens, protected)  # libllama copies only all of a stream with windows

    @property
    def _max_restored(self) -> int:
        """A checkpoint completes the whole prefix, so it is not restored in parts."""
        return sys.maxsize

    def _continue(self, sequence: int, namespace: str, tokens: list[int], limit: int) -> int:
        whole = len(self._residents[sequence].tokens)
        kept = super()._continue(sequence, namespace, tokens, limit)
        if kept:
            self._unsaved.discard(sequence)
            self._is_in_place = kept == whole
        return kept

    def _lost(self, resident: Resident, kept: int) -> int:
        """Without the state at their end, keys and values in host memory are of no use."""
        stored = self._stored(resident)
        usable = max((node.end for node in resident.node.path() if node.checkpoint and node.end <= stored), default=0)
        return resident.goal - max(kept, usable)

    def _unsaved_bytes(self, resident: Resident) -> int:
        """With the state at its end."""
        lacks_end = resident.goal == len(resident.tokens) and not resident.node.checkpoint
        return super()._unsaved_bytes(resident) + (self._checkpoint_size(resident.node.end)[0] if lacks_end else 0)

    # ── resident sequences ───────────────────────────────────────────────────────────────────────────────────────────

    def home(self, namespace: str | None, tokens: list[int]) -> int | None:
        """The one that can keep most, if that is more than half of it and as much as any other source has."""
        if namespace is None or not self._residents:
            return None
        limit = len(tokens) - 1
        kept, home = max((self._kept(it, namespace, tokens, limit), id) for id, it in self._residents.items())
        if not kept or kept < self.lookup(namespace, tokens, limit):
            return None
        return home if 2 * kept > len(self._residents[home].tokens) else None

    @staticmethod
    def _kept(resident: Resident, namespace: str, tokens: list[int], limit: int) -> int:
        """How many tokens a resident keeps if a sequence with these tokens continues it."""
        shared = resident.shared(namespace, tokens, limit)
        if shared == len(resident.tokens):
            return shared
        return next((node.end for node in resident.node.path() if node.checkpoint and node.end <= shared), 0)

    @property
    def is_written_back(self) -> bool:
        return super().is_written_back and not self._unsaved

    def write_back_some(self) -> None:
        before = len(self._operations)
        super().write_back_some()
        while self._unsaved and len(self._operations) == before:
            sequence = self._unsaved.pop()
            self._save_checkpoint(sequence, self._residents[sequence].node, evicts=False)
            self._checked_idle = False

    def _finish_write_back(self, sequence: int, resident: Resident) -> None:
        super()._finish_write_back(sequence, resident)
        self._unsaved.discard(sequence)
        if resident.goal == len(resident.tokens):
            self._save_checkpoint(sequence, resident.node, evicts=True)
        self._drop_orphans()

    def _is_stored(self, resident: Resident) -> bool:
        has_end = resident.goal < len(resident.tokens) or bool(resident.node.checkpoint)
        return has_end and super()._is_stored(resident)

    def _free(self, sequence: int) -> None:
        super()._free(sequence)
        self._unsaved.discard(sequence)
        self._drop_orphans()

    def _drop_contained(self, sequence: int, node: Node) -> None:
        """Only those whose last state is in host memory: it cannot be had from a longer sequence."""
        path = set(node.path())
        for other, resident in list(self._residents.items()):
            if other != sequence and resident.node in path:
                self._save_checkpoint(other, resident.node, evicts=False)
                if resident.node.checkpoint:
                    self._free(other)

    # ── host memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def adopt(self, namespace: str, tokens: list[int], state: Any, *, start: int = 0, has_file: bool = False) -> int:
        """Not possible: keys and values alone are not enough to continue."""
        return 0

    def erase(self, namespace: str, tokens: list[int], keep: int = 0) -> int:
        erased = super().erase(namespace, tokens, keep)
        for orphan in self._tree.orphans:
            self.unwritten_states.forget(orphan.checkpoint)
        self._drop_orphans()
        return erased

    def _save_checkpoint(self, sequence: int, node: Node, *, evicts: bool) -> None:
        """Save what a sequence knows at the end of its last node. Unless it `evicts` others, only free room is used."""
        if node.checkpoint:
            self._touch_checkpoint(node.checkpoint)
            return
        if self._add_checkpoint(node, evicts=evicts):
            self._operations.append(SaveCheckpoint(sequence, node.end, node.checkpoint))
            self.unwritten_states.add(node.checkpoint, node)

    def _add_checkpoint(self, node: Node, *, evicts: bool) -> bool:
        size, cost = self._checkpoint_size(node.end)
        if not node.end or not self._shape.checkpoints or cost > self._quota.budget:
            return False
        path, tenant = set(node.path()), tenant_of(node.namespace)
        if not self._quota.fits(cost) and not (evicts and self._make_room(tenant, cost, path)):
            return False
        on_path = [checkpoint for checkpoint, it in self._checkpoints.items() if it.node in path]
        for checkpoint in on_path[: max(len(on_path) + 1 - self._shape.checkpoints, 0)]:
            self._drop_checkpoint(checkpoint)
        node.checkpoint = next(self._span_ids)
        self._checkpoints[node.checkpoint] = Checkpoint(node, tenant, size, cost)
        self._quota.add(tenant, cost)
        return True

    def _checkpoint_size(self, tokens: int) -> tuple[int, int]:
        """In bytes and in tokens."""
        size = self._shape.snapshot.bytes(tokens)
        return size, -(-size // max(self._shape.bytes_per_token, 1))

    def _touch_checkpoint(self, checkpoint: int) -> None:
        self._checkpoints[checkpoint] = self._checkpoints.pop(checkpoint)
        self.unwritten_states.use(checkpoint)

    def _evict(self, tenant: str, protected: Collection[Node]) -> None:
        """Checkpoints if they take more than keys and values, the least recently used first."""
        mine = [(id, it) for id, it in self._checkpoints.items() if it.tenant == tenant]
        free = [id for id, it in mine if it.node not in protected and id not in self._tree.spared]
        if free and 2 * sum(it.cost for _, it in mine) > self._quota.held(tenant):
            self._drop_checkpoint(free[0])
            return
        try:
            super()._evict(tenant, protected)
        except LookupError:
            if not free:
                raise
            self._drop_checkpoint(free[0])
        self._drop_orphans()

    def _drop_orphans(self) -> None:
        orphans, self._tree.orphans = self._tree.orphans, []
        for orphan in orphans:
            self._drop_checkpoint(orphan.checkpoint, orphan.stored)

    def _drop_checkpoint(self, checkpoint: int, stored: Piece | None = None) -> None:
        """`stored`: what host memory had of its node until now."""
        dropped = self._checkpoints.pop(checkpoint)
        if checkpoint in self.unwritten_states:
            state = stored_state(dropped.node, checkpoint, stored)
            if is_wanted(dropped.node) or (state is not None and self._is_noted(state.namespace, state.tokens)):
                self.unwritten_states.evict(state)
        self.unwritten_states.forget(checkpoint)
        dropped.node.checkpoint = 0
        self._forget_stored(checkpoint, dropped.tenant, dropped.cost)
        self._operations.append(Drop(checkpoint))

    # ── disk ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def use_disk(self) -> None:
        """Note which states have no file, and keep room for those that are evicted before they are written. Spans have
        no files of their own.
        """
        self._has_disk = self.unwritten_states.is_on = True
        self.resize(self._ram_bytes)

    def states_to_write(self) -> Iterator[StoredPath]:
        """States in host memory that are worth a file and have none. Each is given once, until it is used again."""
        for checkpoint, node in self.unwritten_states.new():
            if any(sequence in self._held for sequence in node.holders):
                continue  # more of it will come
            self.unwritten_states.postpone(checkpoint)
            if (state := stored_state(node, checkpoint)) is None:
                continue
            if is_wanted(node) or self._is_noted(state.namespace, state.tokens):
                yield state

    def want_file(self, checkpoint: int) -> None:
        """A checkpoint lacks a file again."""
        if checkpoint in self._checkpoints:
            self.unwritten_states.add(checkpoint, self._checkpoints[checkpoint].node)

    def note_beginning(self, namespace: str, tokens: list[int]) -> None:
        """These are the tokens of a system text: other conversations are likely to begin with them too."""
        if self._has_disk:
            key = hash((namespace, tuple(tokens)))
            self._beginnings.pop(key, None)
            self._beginnings[key] = None
            if len(self._beginnings) > _MAX_BEGINNINGS:
                del self._beginnings[next(iter(self._beginnings))]

    def _is_noted(self, namespace: str, tokens: list[int]) -> bool:
        return bool(self._beginnings) and hash((namespace, tuple(tokens))) in self._beginnings

    def is_beginning(self, namespace: str, tokens: list[int]) -> bool:
        """Whether other conversations have these tokens too: several are known, or it is a system text."""
        match = self._tree.match(namespace, tokens)
        is_branch = match.length == len(tokens) == match.nodes[-1].end and len(match.nodes[-1].children) > 1
        return is_branch or self._is_noted(namespace, tokens)

    def adopt_state(self, namespace: str, tokens: list[int], state: Any) -> int:
        """Store keys and values with the checkpoint at their end. Returns how many of the tokens are cached now."""
        known = super().adopt(namespace, tokens, state)
        if known == len(tokens):
            node = self._tree.grow(namespace, self._tree.match(namespace, tokens), tokens)[-1]
            if not node.checkpoint and self._add_checkpoint(node, evicts=True):
                self._operations.append(AdoptCheckpoint(state, node.checkpoint))
        self._drop_orphans()
        return self.lookup(namespace, tokens)

    @property
    def _writer_bytes(self) -> int:
        """At least for one checkpoint, and a span of keys and values that goes with it."""
        largest = self._shape.snapshot.bytes(self._shape.cells) + SPAN * self._shape.bytes_per_token
        return max(super()._writer_bytes, largest)

    def state_size(self, tokens: int) -> int:
        return super().state_size(tokens) + self._checkpoint_size(tokens)[0]

    def state_tokens(self, tokens: int) -> int:
        """The same in tokens, the unit of the quota."""
        return tokens + self._checkpoint_size(tokens)[1]

    def _begin_clear(self, tenant: str | None) -> None:
        for checkpoint, it in self._checkpoints.items():
            if tenant in (None, it.tenant):
                self.unwritten_states.forget(checkpoint)
        self.unwritten_states.forget_evicted(tenant)
        super()._begin_clear(tenant)

    # ── integrity ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_integrity(self) -> None:
        super().check_integrity()
        placed = {node.checkpoint for node in self._tree.nodes() if node.checkpoint}
        if placed != self._checkpoints.keys():
            raise CacheCorrupted(f"{len(placed)} checkpoints in the tree, {len(self._checkpoints)} in host memory")

    def _count_stored(self) -> int:
        return super()._count_stored() + sum(checkpoint.cost for checkpoint in self._checkpoints.values())
