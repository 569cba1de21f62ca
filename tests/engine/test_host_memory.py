"""Host memory of the cache, with libllama: what is held is what is counted, and never more than the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.checkpoint_memory import CheckpointMemory
from paddock.engine.llama import LlamaEngine
from paddock.engine.prefix_memory import PrefixMemory
from paddock.engine.state import Bytes
from paddock.scheduling.prefix_cache import PrefixCache
from paddock.types import Adopt, Drop, Piece, Save, SlotPrefix
from tests.engine.harness import Harness
from tests.tiers import examples

TEXT = " ".join(f"the {n} of and in an{n}" for n in range(40))
RAM = 768 * 500
LAYOUTS = [
    pytest.param(kind, unified, id=f"{kind}-{'unified' if unified else 'streams'}")
    for kind in ("llama", "latent", "positions")
    for unified in (True, False)
]


def memory_of(harness: Harness) -> PrefixMemory:
    assert isinstance(harness.engine, LlamaEngine)
    memory = harness.engine._memory
    assert isinstance(memory, PrefixMemory)
    return memory


def held_bytes(memory: PrefixMemory) -> int:
    """The sizes of the buffers under all arrays, each once."""
    arrays = [*(part for span in memory._spans.values() for part in span), memory._buffer]
    if isinstance(memory, CheckpointMemory):
        arrays += memory._checkpoints.values()
    roots: dict[int, int] = {}
    for array in arrays:
        root: Any = array
        while isinstance(root, np.ndarray) and root.base is not None:
            root = root.base
        view = memoryview(root)
        roots[id(view.obj)] = view.nbytes
    return sum(roots.values())


class Counted(Harness):
    """Compares the account with what is held after each step."""

    ram_bytes = RAM

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        super().__init__(model, **options)
        memory = memory_of(self)
        self.transient = 0
        """The most bytes that a copy has taken beside the buffer."""

        def counted(room: Callable[[int], Bytes]) -> Callable[[int], Bytes]:
            def wrapped(size: int) -> Bytes:
                found = room(size)
                if not np.shares_memory(found, memory._buffer):
                    self.transient = max(self.transient, found.nbytes)
                return found

            return wrapped

        for name in ("_room", "_room_for"):
            if hasattr(memory, name):
                monkeypatch.setattr(memory, name, counted(getattr(memory, name)))

    def step(self) -> bool:
        is_done = super().step()
        cache, memory = self.scheduler.cache, memory_of(self)
        self.engine.apply(cache.take_operations())
        assert memory.held_bytes == held_bytes(memory)
        # A window lacks its oldest token if another took its cell and was removed again. It is not needed any more.
        windows = len(memory._checkpoints) if isinstance(memory, CheckpointMemory) else 0
        tokens = 0 if memory.has_keys else cache.stored  # they count although nothing else is held of them
        counted = cache.stored_bytes - tokens
        assert 0 <= counted - memory.held_bytes <= windows * memory.snapshot.per_window_token
        assert cache.stored_bytes <= self.ram_bytes
        assert self.transient == 0
        return is_done


@pytest.fixture(
    scope="module",
    params=[(kind, unified) for kind in ("llama", "sliding_window", "hybrid") for unified in (True, False)],
    ids=lambda param: f"{param[0]}-{'unified' if param[1] else 'streams'}",
)
def counted(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Counted]:
    kind, unified = request.param
    with pytest.MonkeyPatch.context() as patch:
        harness = Counted(tiny_models[kind], patch, kv_unified=unified, n_ctx=1024, cache_ram_bytes=RAM, parallel=3)
        yield harness
        harness.close()


_Requests = st.lists(
    st.tuples(
        st.text(st.sampled_from("ab "), min_size=1, max_size=250),
        st.integers(1, 20),
        st.integers(0, 15),
        st.sampled_from(["", "", "cancel", "save", "erase", "shrink"]),
    ),
    min_size=1,
    max_size=8,
)


@examples(25)
@given(requests=_Requests)
def test_what_is_held_is_what_is_counted(counted: Counted, requests: list[tuple[str, int, int, str]]) -> None:
    harness, scheduler = counted, counted.scheduler
    saved: list[tuple[SlotPrefix, bytes]] = []
    for id, (text, size, steps, action) in enumerate(requests):
        harness.ask(id, text, max_tokens=size)
        for _ in range(steps):
            harness.step()
        if action == "cancel":
            scheduler.remove(id)
        elif action == "shrink":
            harness.ram_bytes = RAM // (id + 2)
            scheduler.cache.resize(harness.ram_bytes)
        elif action and scheduler.slots.is_free(0):
            if action == "erase":
                scheduler.slots.erase(0)
            else:
                prefix, pieces = scheduler.slots.recall(0)
                if pieces:  # host memory may have none of it any more
                    saved.append((prefix, b"".join(harness.engine.pack(harness.engine.view_pieces(pieces)))))
        for prefix, packed in saved:
            data = memoryview(
                packed if id % 2 else bytearray(packed)
            )  # memory that may be kept, as from the disk cache
            state = harness.engine.unpack(data, len(prefix.tokens))
            scheduler.slots.adopt(1, prefix, state)
    harness.run()
    harness.ram_bytes = RAM
    scheduler.cache.resize(RAM)


@pytest.mark.parametrize(("start", "end", "size", "is_kept"), [(0, 8, 8, True), (0, 7, 8, False), (2, 8, 8, False)])
@pytest.mark.parametrize("kind", ["whole", "read-only", "larger"])
def test_a_state_that_has_its_own_memory_is_not_copied(
    tiny_models: dict[str, Path], start: int, end: int, size: int, is_kept: bool, kind: str
) -> None:
    harness = Harness(tiny_models["llama"])
    memory = memory_of(harness)
    bytes_ = size * memory.bytes_per_token
    packed = bytes(number % 251 for number in range(bytes_))
    block = packed if kind == "read-only" else bytearray(packed + b"more" * (kind == "larger"))
    state = harness.engine.unpack(memoryview(block)[:bytes_], size)
    harness.engine.apply([Adopt(state, start, end, 5)])
    span = memory._spans[5]
    assert np.shares_memory(span[0], state[0]) == (is_kept and kind == "whole")
    assert memory.held_bytes == held_bytes(memory) == (end - start) * memory.bytes_per_token
    assert all((part == given[:, start:end]).all() for part, given in zip(span, state, strict=True))
    harness.engine.apply([Drop(5)])
    assert memory.held_bytes == 0
    harness.close()


@pytest.mark.parametrize(("kind", "unified"), LAYOUTS)
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_warm_answers_are_those_of_a_cold_cache(
    tiny_models: dict[str, Path], kind: str, unified: bool, flash_attn: str
) -> None:
    """Through a buffer that is smaller than the prompt, after the cells were freed."""
    harness = Harness(tiny_models[kind], kv_unified=unified, flash_attn=flash_attn, parallel=3)
    cold = harness.alone(1, TEXT)
    branch = harness.alone(2, TEXT[:300] + " or not")
    cache = harness.scheduler.cache
    names = {"llama": "keys_values", "latent": "keys", "positions": "keys_values_positions"}
    assert (harness.engine.info.reuse, harness.engine.info.state_format) == ("prefix", names[kind])
    for _ in range(2):
        for sequence in list(cache.resident):
            cache.reclaim(sequence)
        request = harness.ask(1, TEXT)
        harness.run()
        assert request.cached == request.prompt_size - 1
        assert harness.answers.pop(1) == cold
        assert harness.alone(2, TEXT[:300] + " or not") == branch
    harness.close()


@pytest.mark.parametrize(("kind", "unified"), LAYOUTS)
def test_running_requests_share_a_prefix_without_host_memory(
    tiny_models: dict[str, Path], kind: str, unified: bool
) -> None:
    """Streams are then copied by libllama, which needs no buffer."""
    harness = Harness(tiny_models[kind], kv_unified=unified, cache_ram_bytes=0, parallel=3)
    cold = [harness.alone(id, TEXT + f" {id}", namespace=None) for id in range(3)]
    requests = [harness.ask(id, TEXT + f" {id}") for id in range(3)]
    harness.run()
    assert [harness.answers[id] for id in range(3)] == cold
    assert sum(request.cached > 100 for request in requests) == 2
    assert memory_of(harness).held_bytes == 0
    harness.close()


def test_pinned_spans_stay_until_they_are_unpinned(tiny_models: dict[str, Path]) -> None:
    harness = Harness(tiny_models["llama"])
    harness.alone(1, TEXT, wanted_slot=0)
    cache, memory = harness.scheduler.cache, memory_of(harness)
    prefix, pieces = harness.scheduler.slots.recall(0)
    cache.pin(pieces)
    cache.resize(0)
    harness.engine.apply(cache.take_operations())
    assert cache.stored == len(prefix.tokens)
    harness.scheduler.slots.erase(0)
    assert cache.stored == len(prefix.tokens)
    cache.unpin(pieces)
    harness.engine.apply(cache.take_operations())
    assert (cache.stored_bytes, memory.held_bytes) == (0, 0)
    harness.close()


def test_memory_of_dropped_spans_is_reused_unless_another_thread_reads_them(tiny_models: dict[str, Path]) -> None:
    harness = Harness(tiny_models["llama"])
    harness.alone(1, TEXT)
    memory = memory_of(harness)
    name, sequence = next(iter(memory._spans)), harness.scheduler.cache.resident[0]
    size = memory._spans[name][0].shape[1]
    addresses = [memory._spans[name][0].ctypes.data]
    lent = memory.view_pieces([Piece(name, 0, size)])
    before = b"".join(harness.engine.pack(lent))
    harness.engine.apply([Drop(name), Save(sequence, 1, 1 + size, 1001)])
    assert b"".join(harness.engine.pack(lent)) == before
    addresses.append(memory._spans[1001][0].ctypes.data)
    harness.engine.apply([Drop(1001), Save(sequence, 0, size, 1002)])
    addresses.append(memory._spans[1002][0].ctypes.data)
    assert b"".join(harness.engine.pack(memory.view_pieces([Piece(1002, 0, size)]))) == before
    assert addresses[0] != addresses[1] == addresses[2]
    harness.close()


@pytest.mark.parametrize("unified", [True, False])
def test_dropped_spans_count_while_another_thread_reads_them(tiny_models: dict[str, Path], unified: bool) -> None:
    harness = Harness(tiny_models["llama"], kv_unified=unified)
    cache, memory = harness.scheduler.cache, memory_of(harness)
    assert isinstance(cache, PrefixCache)
    cache.use_disk()
    request = harness.ask(1, TEXT)
    harness.run()
    pieces = cache.stored_pieces("", request.tokens)
    assert pieces
    lent = memory.view_pieces(pieces)
    cache.lend(pieces)
    cache.clear()
    harness.engine.apply(cache.take_operations())
    assert memory._spans == {}
    assert cache.stored_bytes - len(memory._buffer) == sum(part.nbytes for span, _, _ in lent for part in span) > 0
    cache.take_back(pieces)
    assert cache.stored_bytes == len(memory._buffer)
    harness.close()


@pytest.mark.parametrize("kind", ["sliding_window", "hybrid", "recurrent"])
@pytest.mark.parametrize("ram", [0, 24 << 10, 48 << 10, 1 << 20])
def test_streams_are_forked_within_the_bound(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, kind: str, ram: int
) -> None:
    """By libllama if there is no room for a buffer. What it cannot copy is computed."""
    precise: dict[str, Any] = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32", "parallel": 3}
    harness = Counted(tiny_models[kind], monkeypatch, kv_unified=False, cache_ram_bytes=ram, **precise)
    harness.ram_bytes = ram
    prompts = [TEXT[:size] + end for size in (700, 500, 700) for end in ("", " one", " other")]
    cold = [harness.alone(id, prompt, namespace=None) for id, prompt in enumerate(prompts)]
    for id, prompt in enumerate(prompts):
        harness.ask(id, prompt)
        if id % 3 == 1:
            harness.run()
    harness.run()
    assert [harness.answers[id] for id in range(len(prompts))] == cold
    harness.close()
