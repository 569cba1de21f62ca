"""Prompts with images in models where all tokens of an image have one position (M-RoPE): whatever is reused of them,
answers are those of a fresh computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paddock.engine.prefix_memory import PrefixMemory
from paddock.scheduling import Request
from paddock.types import Drop, Forget, Fork, Piece, Reserve, Restore, SamplingParams, Save, Span
from tests import tiny_models, tiny_projectors
from tests.engine.media_harness import EXACT, LAYOUTS, Media
from tests.engine.test_host_memory import memory_of
from tests.tiers import examples
from tests.tiny_projectors import picture

LARGE = picture(5, 280, 200)
"""Seventy tokens in ten positions."""
PROMPTS = [
    ("see <m> and tell me of it", [picture(1)]),
    ("see <m> and <m> in it", [picture(1), LARGE]),
    ("<m><m> of a thing, which one is it in the end?", [LARGE, picture(3, 60, 300)]),
    ("the last of them is <m>", [LARGE]),
]
TURN = " and so is the other of it"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("media")
    model, projector = folder / "qwen.gguf", folder / "mmproj-qwen.gguf"
    tiny_models.positions(model)
    tiny_projectors.qwen(projector)
    return model, projector


@pytest.fixture
def open_media(files: tuple[Path, Path]) -> Iterator[Callable[..., Media]]:
    opened: list[Media] = []

    def open_one(**options: Any) -> Media:
        opened.append(Media(files[0], mmproj=str(files[1]), **{**EXACT, **options}))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture(scope="module", params=LAYOUTS)
def media(request: pytest.FixtureRequest, files: tuple[Path, Path]) -> Iterator[Media]:
    one = Media(files[0], mmproj=str(files[1]), **EXACT, **LAYOUTS[request.param])
    yield one
    one.close()


def continued(media: Media, id: int, asked: Request, **fields: Any) -> Request:
    """The next turn of a conversation. Its media are those of the first turn."""
    tokens = [*asked.tokens, *media.engine.vocab.tokenize(TURN, add_special=False, parse_special=False)]
    return media.ask(id, "", tokens=tokens, media=asked.media, **fields)


def answer_of(media: Media, id: int) -> list[int]:
    media.run()
    return media.answers.pop(id)


def fresh(media: Media, asked: Request, **fields: Any) -> list[int]:
    tokens = asked.tokens[: asked.prompt_size]
    media.ask(99, "", tokens=tokens, media=asked.media, namespace=None, **fields)
    return answer_of(media, 99)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_next_turn_computes_new_tokens_only(
    open_media: Callable[..., Media], layout: str, prompt: tuple[str, list[bytes]]
) -> None:
    media = open_media(**LAYOUTS[layout])
    first = media.ask_about(1, *prompt)
    media.run()
    assert media.answers[1] == media.reference(*prompt)
    second = continued(media, 2, first)
    answer = answer_of(media, 2)
    assert second.cached == len(first.tokens) - 1, "the last token of an answer was not computed"
    assert second.reused.cells == second.cached
    third = continued(media, 3, second)
    assert answer_of(media, 3) == fresh(media, third)
    assert third.cached == len(second.tokens) - 1
    assert answer == fresh(media, second)
    again = media.ask_about(4, *prompt)
    assert answer_of(media, 4) == media.answers[1]
    assert again.cached == again.outside_media(again.prompt_size - 1), "the last token is always computed"
    assert media.encoded == len(set(prompt[1]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ram", [64 << 20, 0], ids=["buffer", "no buffer"])
def test_forks(open_media: Callable[..., Media], layout: str, ram: int) -> None:
    """Requests that differ behind an image or in one share what is equal, also with a running request."""
    media = open_media(cache_ram_bytes=ram, **LAYOUTS[layout])
    text, pictures = PROMPTS[1]
    prompts = [
        (text, pictures), (f"{text} of all", pictures), (text, [pictures[0], picture(6, 280, 200)]),
        ("see <m> and there is none in it", pictures[:1]),
    ]  # fmt: skip
    asked = []
    for id, prompt in enumerate(prompts):
        asked.append(media.ask_about(id, *prompt, max_tokens=30))
        while not media.answers[0]:
            media.step()
    media.run()
    for id, prompt in enumerate(prompts):
        assert media.answers[id] == media.reference(*prompt, count=30)
    whole, again, other, one = asked
    assert again.cached >= whole.media[1].end
    assert other.cached == whole.media[1].start
    assert one.cached > whole.media[0].end


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_restored_from_host_memory(
    open_media: Callable[..., Media], layout: str, prompt: tuple[str, list[bytes]]
) -> None:
    media = open_media(**LAYOUTS[layout])
    first = media.ask_about(1, *prompt)
    media.run()
    second = continued(media, 2, first)
    expected = fresh(media, second)
    assert answer_of(media, 2) == expected
    cache = media.scheduler.cache
    for id in (3, 4):
        for sequence in list(cache.resident):
            cache.reclaim(sequence)
        media.engine.apply(cache.take_operations())
        assert not media.engine.used_sequences()
        again = media.ask(id, "", tokens=second.tokens[: second.prompt_size], media=second.media)
        assert answer_of(media, id) == expected
        assert again.cached == again.prompt_size - 1
        assert again.from_host == again.cached
        third = continued(media, id + 10, again)
        assert answer_of(media, id + 10) == fresh(media, third)
        assert third.cached >= len(again.tokens) - 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_a_saved_slot_is_restored_in_another_engine(open_media: Callable[..., Media], layout: str, other: str) -> None:
    """Its bytes are those of a file of the disk cache too."""
    one, two = open_media(**LAYOUTS[layout]), open_media(parallel=3, **LAYOUTS[other])
    asked = one.ask_about(1, *PROMPTS[1], wanted_slot=1)
    one.run()
    prefix, pieces = one.scheduler.slots.recall(1)
    assert prefix.tokens == asked.tokens[: len(prefix.tokens)]
    packed = b"".join(one.engine.pack(one.engine.view_pieces(pieces)))
    assert len(packed) == len(prefix.tokens) * one.engine.shape.bytes_per_token
    assert two.scheduler.slots.adopt(2, prefix, two.engine.unpack(memoryview(packed), len(prefix.tokens)))
    again = two.ask(2, "", tokens=asked.tokens[: asked.prompt_size], media=asked.media)
    assert answer_of(two, 2) == one.answers[1]
    assert again.cached == again.prompt_size - 1
    assert two.encoded == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_such_copies_nothing_is_shared(
    open_media: Callable[..., Media], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a libllama that does not copy all of a cell. Text is shared nevertheless."""
    monkeypatch.setattr(PrefixMemory, "_learn_images", lambda *_: False)
    media = open_media(**LAYOUTS[layout])
    for id in range(2):
        asked = media.ask_about(id, *PROMPTS[1])
        text = media.ask(10 + id, "there is no picture in here")
        media.run()
        assert media.answers[id] == media.reference(*PROMPTS[1])
        assert asked.cached == 0
        assert text.cached == (text.prompt_size - 1 if id else 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_state_without_positions_is_another_state(open_media: Callable[..., Media], layout: str) -> None:
    """Files of a version that did not store positions are not read."""
    assert "with positions" in open_media(**LAYOUTS[layout]).engine.origin.settings


Cuts = st.lists(st.integers(1, 200), max_size=5)


@examples(15)
@example(saved=[20, 50], restored=[30], number=2, buffer=0)
@example(saved=[30, 60], restored=[25, 26, 40], number=3, buffer=20)
@example(saved=[], restored=[], number=1, buffer=60)
@given(saved=Cuts, restored=Cuts, number=st.integers(0, len(PROMPTS) - 1), buffer=st.sampled_from([0, 20, 60]))
def test_any_parts_are_saved_and_restored(
    media: Media, saved: list[int], restored: list[int], number: int, buffer: int
) -> None:
    """Also parts of images, because prefixes are cut by size, and through a buffer of any size. Cells of another
    sequence are between.
    """
    engine = media.engine
    asked = media.ask_about(1, *PROMPTS[number], max_tokens=4, namespace=None)
    running = media.ask_about(2, *PROMPTS[1 - number % 2], max_tokens=40, namespace=None)
    while asked.produced < 2:
        media.step()
    size = asked.prompt_size
    token, expected = asked.tokens[size : size + 2]
    parts = [(100 + start, start, end) for start, end in cut(size, saved)]
    engine.apply([Reserve(buffer)])
    for name, start, end in parts[: len(parts) // 2]:
        engine.apply([Save(asked.sequence, start, end, name)])
    engine.apply([Save(asked.sequence, start, end, name) for name, start, end in parts[len(parts) // 2 :]])
    engine.apply([Reserve(0), Save(asked.sequence, 0, size, 99)])
    ((whole, _, _),) = memory_of(media).view_pieces([Piece(99, 0, size)])
    for name, start, end in parts:
        ((part, _, _),) = memory_of(media).view_pieces([Piece(name, 0, end - start)])
        assert all((some == every[:, start:end]).all() for some, every in zip(part, whole, strict=True))
    media.scheduler.remove(1)
    target = 3
    engine.apply([Reserve(buffer)])
    if engine.shape.unified:
        for first, last in cut(size, restored):
            pieces = [
                Piece(name, max(first - start, 0), min(last, end) - max(first, start))
                for name, start, end in parts
                if start < last and first < end
            ]
            engine.apply([Restore(target, first, pieces)])
    else:
        engine.apply([Restore(target, 0, [Piece(name, 0, end - start) for name, start, end in parts])])
    sampler = engine.sampler(SamplingParams(temperature=0.0), [])
    (result,) = engine.decode([Span(target, size, [token], sampler=sampler)])
    assert result is not None
    assert result.token == expected
    engine.apply([Forget(target), *(Drop(name) for name in (99, *(name for name, _, _ in parts))), Reserve(0)])
    assert answer_of(media, 2) == fresh(media, running, max_tokens=40)
    media.answers.clear()


def test_tokens_are_saved_from_any_cells(media: Media) -> None:
    """Cells that were freed are used again, so a sequence may have its tokens in any order."""
    memory = memory_of(media)
    asked = media.ask_about(1, *PROMPTS[1], max_tokens=4, namespace=None)
    while asked.produced < 2:
        media.step()
    size, copied, unordered = asked.prompt_size, 2, 3
    memory.apply([Save(asked.sequence, 0, size, 100)])
    ((span, _, _),) = memory.view_pieces([Piece(100, 0, size)])
    format = memory._state_format
    state = np.empty(format.size(size), np.uint8)
    format.join([(span, place, 1) for place in np.random.default_rng(1).permutation(size).tolist()], 0, state)
    memory.put(unordered, state)
    end = asked.media[0].start
    memory.apply([Save(unordered, 0, size, 101), Reserve(4 * size)])
    memory.apply([Fork(unordered, copied, end), Save(copied, 0, end, 102)])
    for name, length in ((101, size), (102, end)):
        ((again, _, _),) = memory.view_pieces([Piece(name, 0, length)])
        assert all((part == expected[:, :length]).all() for part, expected in zip(again, span, strict=True))
    memory.apply([Forget(copied), Forget(unordered), *map(Drop, (100, 101, 102)), Reserve(0)])
    media.run()
    media.answers.clear()


def cut(size: int, places: list[int]) -> list[tuple[int, int]]:
    return list(pairwise([0, *sorted({place for place in places if place < size}), size]))
