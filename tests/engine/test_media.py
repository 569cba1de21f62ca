"""Images in prompts: answers have the tokens of libmtmd's own helper, and sharing, batching and preemption change none
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paddock.engine.projector import media_ids
from paddock.scheduling import Request
from paddock.types import Forget, Fork, MediaSpan
from tests import tiny_models, tiny_projectors
from tests.engine.media_harness import EXACT, LAYOUTS, Media
from tests.options import draft_params
from tests.tiers import full
from tests.tiny_projectors import picture, sound

KINDS = {
    "llava": (tiny_models.llama, tiny_projectors.llava),
    "gemma": (tiny_models.sliding_window, tiny_projectors.gemma),
    "qwen": (tiny_models.positions, tiny_projectors.qwen),
}
AUDIO = {"ultravox": (tiny_models.llama, tiny_projectors.ultravox)}
PROMPTS = [
    ("see <m> and tell me of it", [picture(1)]),
    ("see <m> and tell him of it", [picture(1)]),
    ("see <m> and tell me of it", [picture(2)]),
    ("the <m> or <m> of a thing, which one is it in the end?", [picture(3, 80, 50), picture(1)]),
    ("there is no picture in here, but the text is long enough", []),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("media")

    @cache
    def make(kind: str) -> tuple[Path, Path]:
        model, projector = folder / f"{kind}.gguf", folder / f"mmproj-{kind}.gguf"
        make_model, make_projector = (KINDS | AUDIO)[kind]
        make_model(model)
        make_projector(projector)
        return model, projector

    return make


@pytest.fixture
def open_media(files: Callable[[str], tuple[Path, Path]]) -> Iterator[Callable[..., Media]]:
    opened: list[Media] = []

    def open_one(kind: str, **options: Any) -> Media:
        model, projector = files(kind)
        opened.append(Media(model, mmproj=str(projector), **{**EXACT, **options}))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_library(open_media: Callable[..., Media], kind: str, layout: str) -> None:
    """Alone and cold, again and warm, and all together."""
    media = open_media(kind, **LAYOUTS[layout])
    expected = [media.reference(*prompt) for prompt in PROMPTS]
    assert len({tuple(answer) for answer in expected}) > 2, "the prompts give different answers"
    for _ in range(2):
        for id, prompt in enumerate(PROMPTS):
            media.ask_about(id, *prompt)
            media.run()
            assert media.answers.pop(id) == expected[id]
    for id, prompt in enumerate(PROMPTS):
        media.ask_about(id, *prompt)
    media.run()
    assert [media.answers[id] for id in range(len(PROMPTS))] == expected


@full
def test_audio(open_media: Callable[..., Media]) -> None:
    """Half a minute is a chunk. What it shares is as with images."""
    media = open_media("ultravox")
    prompts = [
        ("hear <m> and tell me", [sound(1)]),
        ("hear <m> and tell me", [sound(2)]),
        ("hear <m> and <m> of it", [sound(1), sound(2, 31)]),
    ]
    asked = []
    for id, prompt in enumerate(prompts):
        asked.append(media.ask_about(id, *prompt))
        media.run()
        assert media.answers[id] == media.reference(*prompt)
    assert [len(request.media) for request in asked] == [1, 1, 3]
    assert asked[2].cached > asked[0].media[0].end
    assert asked[1].cached == asked[0].media[0].start
    assert media.encoded == 4


def test_an_image_is_encoded_and_computed_once(open_media: Callable[..., Media]) -> None:
    media = open_media("llava")
    first = media.ask_about(1, *PROMPTS[0])
    media.run()
    assert (media.encoded, first.cached) == (1, 0)
    again, other = media.ask_about(2, *PROMPTS[1]), media.ask_about(3, *PROMPTS[2])
    media.run()
    (span,) = again.media
    assert again.cached > span.end, "the text after the image is shared too"
    assert other.cached == span.start, "another image shares the text before it only"
    assert media.encoded == 2


def test_concurrent_requests_share_an_image(open_media: Callable[..., Media]) -> None:
    media = open_media("llava")
    requests = [media.ask_about(id, *PROMPTS[id % 2]) for id in range(4)]
    media.run()
    assert media.encoded == 1
    assert all(request.cached > request.media[0].end for request in requests[1:])


def test_an_image_is_never_shared_in_part(open_media: Callable[..., Media]) -> None:
    """Ids of two images may be equal by chance at some places."""
    media = open_media("llava")
    first = media.ask_about(1, *PROMPTS[0])
    media.run()
    changed = list(first.tokens[: first.prompt_size])
    (span,) = first.media
    changed[span.end - 1] -= 1
    second = media.ask(2, "", tokens=changed, media=first.media)
    media.run()
    assert second.cached == span.start


@pytest.mark.parametrize("kind", KINDS)
def test_deterministic_answers_are_exact(open_media: Callable[..., Media], kind: str) -> None:
    """Cold or warm, alone or beside others, with a prompt of several chunks."""
    media = open_media(kind, kv_unified=False, deterministic=True, chunk=512)
    long = f"{'a long text before it, ' * 12}<m>{' and after it' * 12}"
    prompts = [(long, [picture(1)]), *PROMPTS]

    def ask(id: int) -> None:
        media.ask_about(id, *prompts[id], deterministic=True, temperature=1.0)

    alone = []
    for id in range(len(prompts)):
        ask(id)
        media.run()
        alone.append(media.answers.pop(id))
    for id in reversed(range(len(prompts))):
        ask(id)
    media.run()
    assert [media.answers[id] for id in range(len(prompts))] == alone


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_requests_continue(open_media: Callable[..., Media], kind: str) -> None:
    """There are cells for two of the prompts, so that requests lose theirs and compute images again."""
    media = open_media(kind, n_ctx=256, parallel=4, kv_unified=True, cache_ram_bytes=0)
    expected = [media.reference(*prompt, count=40) for prompt in PROMPTS]
    for id, prompt in enumerate(PROMPTS):
        media.ask_about(id, *prompt, max_tokens=40)
    media.run()
    assert [media.answers[id] for id in range(len(PROMPTS))] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_guesses_and_drafts(
    open_media: Callable[..., Media], files: Callable[[str], tuple[Path, Path]], kind: str
) -> None:
    """A draft model sees no images, and no image is guessed: answers stay as they are."""
    media = open_media(kind, model_draft=str(files(kind)[0]) if kind == "llava" else "")
    draft = draft_params(n_max=4, n_min=0, p_min=0.0, lookup=8, priced=False)
    text = "of it <m> of it <m> of it"
    expected = media.reference(text, [picture(1), picture(1)], 24)
    for id in range(3):
        media.ask_about(id, text, [picture(1), picture(1)], max_tokens=24, draft=draft)
    media.run()
    assert [media.answers[id] for id in range(3)] == [expected] * 3


def test_a_sequence_with_grid_positions_is_moved(open_media: Callable[..., Media]) -> None:
    """It has several cells with the same position, so that no copy may count cells by positions."""
    media = open_media("qwen", kv_unified=False)
    text, files = PROMPTS[3]
    expected = media.reference(text, files, 40)
    short = media.ask_about(0, *PROMPTS[-1], max_tokens=4)
    request = media.ask_about(1, text, files, max_tokens=40)
    while request.produced < 10:
        media.step()
    assert short.id in media.finished
    source, target = request.sequence, 3
    engine: Any = media.engine
    engine.apply([Fork(source, target, request.computed), Forget(source)])
    engine.apply([Fork(target, source, request.computed), Forget(target)])
    media.run()
    assert media.answers[1] == expected


def test_streams_continue_beside_images(open_media: Callable[..., Media]) -> None:
    """A running answer gets a token at least in every second step, however many images wait."""
    media = open_media("llava")
    running = media.ask_about(0, *PROMPTS[-1], max_tokens=60)
    while not media.answers[0]:
        media.step()
    for id in range(1, 4):
        media.ask_about(id, f"{id} <m><m><m> of it", [picture(10 * id + n) for n in range(3)])
    steps = [len(media.answers[0])]
    while running.produced < 60 and media.step():
        steps.append(len(media.answers[0]))
    assert all(later > earlier for earlier, later in zip(steps, steps[2:], strict=False))
    media.run()


def test_ids_of_tokens() -> None:
    """Negative, not -1, and 32-bit numbers, since files of the disk cache and receipts have them so."""
    ids = media_ids(b"key", 5000)
    assert len(ids) == 5000
    assert all(-(2**31) <= id < -1 for id in ids)
    assert ids[:100] == media_ids(b"key", 100)
    assert not set(ids[:100]) & set(media_ids(b"other", 100))


def test_where_a_prompt_may_be_cut() -> None:
    request = Request(1, list(range(30)), None, 1, media=(MediaSpan(5, 9, None), MediaSpan(9, 20, None)))
    assert [request.outside_media(length) for length in (0, 5, 6, 9, 10, 19, 20, 30)] == [0, 5, 5, 9, 9, 9, 20, 30]
    chunks = []
    while request.computed < len(request.tokens):
        chunks.append((request.max_chunk, request.next_media is not None))
        request.computed += request.max_chunk
    assert chunks == [(5, False), (4, True), (11, True), (10, False)]
