"""Parts of streams are read from the tensors of the cache. They are what libllama itself writes of the whole stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import stream_rows
from paddock.engine.llama import LlamaEngine
from paddock.engine.prefix_memory import PrefixMemory
from paddock.scheduling import Scheduler
from paddock.types import Forget, Fork, Save, Span
from tests.engine.harness import Harness
from tests.options import draft_params
from tests.tiers import examples

TEXT = " ".join(f"the {n} of and in an{n}" for n in range(40))


def memory_of(harness: Harness) -> PrefixMemory:
    assert isinstance(harness.engine, LlamaEngine)
    memory = harness.engine._memory
    assert isinstance(memory, PrefixMemory)
    return memory


def as_libllama_writes_it(memory: PrefixMemory, sequence: int, tokens: int) -> tuple[Any, ...]:
    format = memory._state_format
    state = memory._read_state(sequence, np.empty(memory._size(sequence), np.uint8))
    span = format.empty(tokens)
    format.copy(state, 0, tokens, span)
    return span


def after_an_answer(harness: Harness) -> tuple[PrefixMemory, int, tuple[Any, ...]]:
    """How many tokens stream 0 has then, and what libllama writes of them."""
    harness.ask(1, TEXT, 4)
    while harness.step():
        pass
    memory, tokens = memory_of(harness), harness.scheduler.cache.length(0)
    return memory, tokens, as_libllama_writes_it(memory, 0, tokens)


class Compared(Harness):
    """Compares all that is in cells after each step, in parts of a few tokens."""

    part = 7

    def step(self) -> bool:
        is_done = super().step()
        self.engine.apply(self.scheduler.cache.take_operations())
        memory = memory_of(self)
        assert memory._rows is not None
        for sequence in self.engine.used_sequences():
            tokens = memory._tokens(sequence)
            found = memory._state_format.empty(tokens)
            for first in range(0, tokens, self.part):
                memory._rows.read(sequence, first, min(first + self.part, tokens), found, first)
            expected = as_libllama_writes_it(memory, sequence, tokens)
            assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
        return is_done


@pytest.fixture(scope="module", params=["llama", "latent"])
def compared(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Compared]:
    harness = Compared(tiny_models[request.param], kv_unified=False, n_ctx=768, parallel=3, cache_ram_bytes=200_000)
    assert harness.engine.shape.saves_stream_parts
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def gpu_and_plain(tiny_models: dict[str, Path]) -> Iterator[tuple[Harness, Harness]]:
    """The first one forks streams as on a GPU."""
    options: dict[str, Any] = {"kv_unified": False, "n_ctx": 6 * 256, "parallel": 6, "cache_ram_bytes": 64 << 20}
    gpu, plain = (Harness(tiny_models["llama"], chunk=400, **options) for _ in range(2))
    memory_of(gpu)._on_gpu = True
    gpu.scheduler = Scheduler(
        shape=msgspec.structs.replace(gpu.engine.shape, forks_on_device=True, stages_parts=True, part_tokens=50),
        n_ctx=gpu.engine.info.n_ctx,
        slots=gpu.engine.info.n_slots,
        n_batch=400,
        end_tokens=gpu.engine.vocab.end_tokens,
    )
    for harness in (gpu, plain):
        assert harness.engine.shape.saves_stream_parts
    yield gpu, plain
    for harness in (gpu, plain):
        harness.close()


@examples(25)
@given(
    requests=st.lists(
        st.tuples(
            st.text(st.sampled_from("ab "), min_size=1, max_size=200),
            st.integers(1, 20),
            st.integers(0, 15),
            st.sampled_from(["", "", "cancel", "erase", "shrink", "reclaim"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_tokens_are_in_their_order_whatever_happens(
    compared: Compared, requests: list[tuple[str, int, int, str, bool]]
) -> None:
    """Prompts are continued, cut, shared, restored, cancelled and answered with wrong guesses."""
    harness, scheduler = compared, compared.scheduler
    for id, (text, size, steps, action, guesses) in enumerate(requests):
        drafts: dict[str, Any] = {"draft": draft_params(lookup=8, priced=False)} if guesses else {}
        harness.ask(id, text, max_tokens=size, **drafts)
        for _ in range(steps):
            harness.step()
        if action == "cancel":
            scheduler.remove(id)
        elif action == "shrink":
            scheduler.cache.resize(200_000 // (id + 1))
        elif action == "erase" and scheduler.slots.is_free(0):
            scheduler.slots.erase(0)
        elif action == "reclaim" and (resident := scheduler.cache.resident):
            scheduler.cache.reclaim(resident[0])
    harness.run()
    scheduler.cache.resize(200_000)


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_a_few_tokens_cost_what_they_are(tiny_models: dict[str, Path], cache_type: str) -> None:
    """No buffer is needed, and only these tokens are copied."""
    harness = Harness(
        tiny_models["llama"], kv_unified=False, parallel=2, cache_type_k=cache_type, cache_type_v=cache_type
    )
    memory, _, whole = after_an_answer(harness)
    first, second = harness.engine.apply([Save(0, 5, 12, 77), Save(0, 100, 130, 78)])
    assert (first.size, second.size) == (7 * memory.bytes_per_token, 30 * memory.bytes_per_token)
    assert len(memory._buffer) == 0
    for name, begin, end in ((77, 5, 12), (78, 100, 130)):
        assert all(np.array_equal(a, b[:, begin:end]) for a, b in zip(memory._spans[name], whole, strict=True))
    harness.close()


@pytest.mark.parametrize("room", [0, 1, 7, 1000])
def test_a_gpu_copies_rows_through_the_buffer(tiny_models: dict[str, Path], room: int) -> None:
    """In parts, if it is small."""
    harness = Harness(tiny_models["llama"], kv_unified=False, parallel=2)
    memory, tokens, whole = after_an_answer(harness)
    memory._on_gpu = True
    memory._buffer = np.zeros(room * memory.bytes_per_token, np.uint8)
    (copied,) = harness.engine.apply([Save(0, 5, tokens - 3, 77)])
    assert copied.size == (tokens - 8) * memory.bytes_per_token
    assert all(np.array_equal(a, b[:, 5 : tokens - 3]) for a, b in zip(memory._spans[77], whole, strict=True))
    assert bool(memory._buffer.any()) == (room > 0)
    harness.close()


def test_the_buffer_for_parts_is_small(tiny_models: dict[str, Path]) -> None:
    harness = Harness(tiny_models["llama"], kv_unified=False, parallel=2)
    shape = msgspec.structs.replace(harness.engine.shape, part_tokens=100)
    harness.close()
    assert shape.saved_through(5000) == 0, "a CPU needs none"
    staged = msgspec.structs.replace(shape, stages_parts=True)
    assert (staged.saved_through(5000), staged.saved_through(20)) == (100, 20)
    assert msgspec.structs.replace(staged, saves_stream_parts=False).saved_through(5000) == 5000


@examples(15)
@given(
    asked=st.lists(st.tuples(st.integers(0, 60), st.text("ab ", max_size=90)), min_size=2, max_size=9),
    steps=st.lists(st.integers(0, 12), min_size=9, max_size=9),
)
def test_what_is_saved_beside_copies_on_a_gpu_is_right(
    gpu_and_plain: tuple[Harness, Harness], asked: list[tuple[int, str]], steps: list[int]
) -> None:
    """Streams are forked, moved and saved in the same step. Wrong rows are those of other tokens, or none: they differ
    by much more than by rounding.
    """
    harness, plain = gpu_and_plain
    texts = ["the shared beginning " * (shared // 20) + own + "." for shared, own in asked]
    requests = []
    for id, (text, count) in enumerate(zip(texts, steps, strict=False)):
        requests.append(harness.ask(id, text, 6 + id))
        for _ in range(count):
            harness.step()
    harness.run()
    cache = harness.scheduler.cache
    assert cache.stored_bytes == memory_of(harness).held_bytes, "with the buffer"
    assert not cache.stored_bytes or len(memory_of(harness)._buffer)
    for request in requests:
        pieces = cache.stored_pieces("", request.tokens) if request.tokens else []
        length = sum(piece.length for piece in pieces)
        if not length:
            continue
        plain.engine.apply([Forget(0)])
        plain.engine.decode([Span(0, 0, request.tokens[:length])])
        expected = as_libllama_writes_it(memory_of(plain), 0, length)
        for group, target in enumerate(expected):
            stored = np.concatenate(
                [span[group][:, at : at + size] for span, at, size in memory_of(harness)._keys(pieces)], 1
            )
            assert np.allclose(stored.view(np.float16), target.view(np.float16), atol=0.05)
    for sequence in list(cache.resident):
        cache.reclaim(sequence)
    cache.clear()
    harness.engine.apply(cache.take_operations())


def test_a_copy_that_libllama_has_put_off_is_read_where_it_comes_from(tiny_models: dict[str, Path]) -> None:
    """It copies a stream when the next step begins."""
    harness = Harness(tiny_models["llama"], kv_unified=False, parallel=3)
    memory, tokens, whole = after_an_answer(harness)
    assert len(memory._buffer) == 0, "so libllama makes the copies"
    harness.engine.apply([Fork(0, 1, tokens), Fork(1, 2, tokens), Forget(0), Save(2, 0, tokens, 77)])
    assert all(np.array_equal(*pair) for pair in zip(memory._spans[77], whole, strict=True))
    harness.engine.decode([Span(2, tokens, [5])])
    harness.engine.apply([Save(2, 0, tokens, 78)])
    assert all(np.array_equal(*pair) for pair in zip(memory._spans[78], whole, strict=True))
    assert memory._origins == {}
    harness.close()


@pytest.mark.parametrize(
    ("options", "is_read"),
    [
        ({}, True),
        ({"flash_attn": "off"}, False),  # values are transposed
        ({"kv_unified": True}, False),
    ],
)
def test_what_can_be_read(tiny_models: dict[str, Path], options: dict[str, Any], is_read: bool) -> None:
    harness = Harness(tiny_models["llama"], **({"kv_unified": False, "parallel": 3} | options))
    assert harness.engine.shape.saves_stream_parts == is_read
    harness.close()


@pytest.mark.parametrize("wrong", ["stream", "order"])
def test_tensors_with_other_bytes_are_not_used(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Such as a library that numbers streams or stores tokens in another way."""
    read = stream_rows.StreamRows.read

    def other(self: Any, stream: int, first: int, last: int, into: Any, offset: int) -> None:
        read(self, 0 if wrong == "stream" else stream, first, last, into, offset)
        if wrong == "order":
            for group in into:
                group[:, offset : offset + last - first] = group[:, offset : offset + last - first][:, ::-1].copy()

    monkeypatch.setattr(stream_rows.StreamRows, "read", other)
    harness = Harness(tiny_models["llama"], kv_unified=False, parallel=3)
    assert not harness.engine.shape.saves_stream_parts
    cold = harness.alone(1, TEXT)
    for sequence in list(harness.scheduler.cache.resident):
        harness.scheduler.cache.reclaim(sequence)
    assert harness.alone(1, TEXT) == cold
    harness.close()
