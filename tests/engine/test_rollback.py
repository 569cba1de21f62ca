"""Drafts for hybrid models: the recurrent state is set back to what it was before a wrong token."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.checkpoint_memory import CheckpointMemory
from paddock.engine.llama import LlamaEngine
from paddock.engine.rollback import even_out, rolls_back
from paddock.errors import DecodeFailed
from paddock.types import Forget, SamplingParams, Span
from tests.engine.guessing import GuessingHarness
from tests.engine.harness import Harness
from tests.options import draft_params
from tests.tiers import examples, full

KINDS = ["delta_net", "mamba2", "convolution"]
# Without rounding to half precision a step of another shape gives the same text.
MOST = 4
"""Earlier states of each sequence."""
EXACT = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32", "n_threads": 1}
TEXTS = ["the horse ", "an old mare stands by the brook. " * 3, "in the end she is another one", "a", "b c d"]


@pytest.fixture(
    scope="module",
    params=[(kind, unified) for kind in KINDS for unified in (True, False)],
    ids=[f"{kind}-{layout}" for kind in KINDS for layout in ("unified", "streams")],
)
def harnesses(
    request: pytest.FixtureRequest, tiny_models: dict[str, Path]
) -> Iterator[tuple[GuessingHarness, Harness]]:
    """A harness with drafts and one without."""
    kind, unified = request.param
    options: dict[str, Any] = {"kv_unified": unified, "chunk": 48, "n_ubatch": 64, **EXACT}
    guessing = GuessingHarness(tiny_models[kind], {}, max_rolled_back=MOST, **options)
    pair = guessing, Harness(tiny_models[kind], max_rolled_back=0, **options)
    assert (pair[0].engine.shape.most_drafted, pair[1].engine.shape.most_drafted) == (MOST, 0)
    yield pair
    for harness in pair:
        harness.close()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_are_the_same_with_any_drafts(harnesses: tuple[GuessingHarness, Harness], temperature: float) -> None:
    """Several requests at a time, with prompts of others between them."""
    guessing, plain = harnesses
    asked: list[dict[str, Any]] = [{"text": text, "max_tokens": 40, "temperature": temperature} for text in TEXTS]
    expected = {id: plain.alone(id, **fields) for id, fields in enumerate(asked)}
    guessing.answers.clear()
    guessing.right, guessing.drafted, guessing.accepted = expected, 0, 0
    for id, fields in enumerate(asked):
        guessing.ask(id, **fields)
        for _ in range(7):
            guessing.step()
    guessing.run()
    assert {id: guessing.answers[id] for id in expected} == expected
    assert 0 < guessing.accepted < guessing.drafted


_Requests = st.lists(
    st.tuples(st.integers(20, 90), st.sampled_from(["", "ab", "b a ", "aaab"]), st.integers(1, 40), st.integers(0, 9)),
    min_size=1,
    max_size=6,
)


@examples(15)
@given(requests=_Requests, cancelled=st.integers(0, 5), seed=st.integers(0, 99))
def test_prefixes_that_are_shared_and_continued_change_no_answer(
    harnesses: tuple[GuessingHarness, Harness], requests: list[tuple[int, str, int, int]], cancelled: int, seed: int
) -> None:
    """Checkpoints and copies are also taken of a sequence that was just set back. Each answer is continued."""
    guessing, plain = harnesses
    guessing.answers.clear()
    guessing.random = random.Random(seed)
    base = "an old mare stands by the brook and the other horse "
    prompts = [(base * 2)[:cut] + tail for cut, tail, *_ in requests]
    asked = []
    guessing.right = right = {
        id: plain.alone(id, prompt, max_tokens=40, namespace=None) for id, prompt in enumerate(prompts)
    }
    for id, (_, _, size, steps) in enumerate(requests):
        asked.append(guessing.ask(id, prompts[id], max_tokens=size))
        for _ in range(steps):
            guessing.step()
        if id == cancelled:
            guessing.scheduler.remove(id)
    guessing.run()
    for id, (_, _, size, _) in enumerate(requests):
        answer = guessing.answers.pop(id, [])
        assert answer == right[id][: len(answer)]
        assert len(answer) == size or id == cancelled
    follow_ups = {id: [*request.tokens, 270, 271] for id, request in enumerate(asked)}
    guessing.right = {id: plain.alone(id, "", tokens=tokens, namespace=None) for id, tokens in follow_ups.items()}
    for id, tokens in follow_ups.items():
        asked[id] = guessing.ask(id, "", tokens=tokens)
        guessing.run()
        assert guessing.answers[id] == guessing.right[id]


def test_steps_of_any_sequences_change_no_answer(harnesses: tuple[GuessingHarness, Harness]) -> None:
    """In any order, and with drafts of any lengths. Later steps move the states of sequences to other cells."""
    guessing, plain = harnesses
    engine, choose = guessing.engine, random.Random(5)
    texts = [f"horse {number} " for number in range(4)]
    expected = [plain.alone(number, text, max_tokens=24, namespace=None) for number, text in enumerate(texts)]
    prompts = [engine.vocab.tokenize(text, add_special=True, parse_special=True) for text in texts]
    for _ in range(12):
        engine.apply([Forget(sequence) for sequence in engine.used_sequences()])
        samplers = [engine.sampler(SamplingParams(temperature=0, ignore_eos=True), prompt) for prompt in prompts]
        answers: list[list[int]] = [[] for _ in texts]
        while waiting := [number for number, answer in enumerate(answers) if len(answer) < 20]:
            spans = []
            for number in choose.sample(waiting, choose.randint(1, len(waiting))):
                prompt, answer, sampler = prompts[number], answers[number], samplers[number]
                if not answer:
                    spans.append(Span(number, 0, prompt, sampler))
                    continue
                right = expected[number][len(answer) :][: choose.randint(0, 4)]
                draft = [*right, 5, 6, 7, 8][: choose.randint(0, 4)]
                start = len(prompt) + len(answer) - 1
                spans.append(Span(number, start, answer[-1:], sampler, draft=draft, draft_source="ngram"))
            for span, result in zip(spans, engine.decode(spans), strict=True):
                assert result is not None
                answers[span.sequence] += [token for one in (result, *result.more) if (token := one.token) is not None]
        assert answers == [tokens[: len(answer)] for tokens, answer in zip(expected, answers, strict=True)]
    engine.apply([Forget(sequence) for sequence in engine.used_sequences()])


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_models_that_libllama_cannot_set_back_never_draft(tiny_models: dict[str, Path], kind: str) -> None:
    harness = GuessingHarness(tiny_models[kind], {}, max_rolled_back=MOST)
    assert harness.engine.shape.most_drafted == 0
    request = harness.ask(1, "the horse ")
    harness.run()
    assert (request.drafted, harness.drafted, len(harness.answers[1])) == (0, 0, 12)
    harness.close()


@full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draft", ["llama", "draft"])
def test_a_draft_model_for_a_hybrid_model(tiny_models: dict[str, Path], kind: str, draft: str) -> None:
    drafting = Harness(tiny_models[kind], model_draft=str(tiny_models[draft]), max_rolled_back=MOST, **EXACT)
    plain = Harness(tiny_models[kind], **EXACT)
    params = draft_params(n_max=6, p_min=0, lookup=0, priced=False)
    requests = [drafting.ask(id, text, max_tokens=60, draft=params) for id, text in enumerate(TEXTS[:2])]
    drafting.run()
    for id, request in enumerate(requests):
        assert drafting.answers[id] == plain.alone(id, TEXTS[id], max_tokens=60)
        assert request.drafted > 0
    drafting.close()
    plain.close()


def test_a_sequence_that_is_cut_otherwise_loses_its_recurrent_state(tiny_models: dict[str, Path]) -> None:
    """It could be set back to a state of another sequence."""
    harness = Harness(tiny_models["delta_net"], max_rolled_back=MOST, **EXACT)
    assert isinstance(harness.engine, LlamaEngine) and isinstance(harness.engine._memory, CheckpointMemory)
    harness.engine.decode([Span(0, 0, [5, 6, 7, 8])])
    harness.engine.apply([Forget(0, 4)])
    assert harness.engine._memory._length(0) == 4
    harness.engine.apply([Forget(0, 3)])
    assert harness.engine._memory._length(0) == 0
    harness.close()


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_the_same_with_and_without_earlier_ones(tiny_models: dict[str, Path], kind: str) -> None:
    """So files of prefixes and saved slots are valid for both."""
    states = []
    for most in (0, MOST):
        harness = Harness(tiny_models[kind], max_rolled_back=most, **EXACT)
        assert isinstance(harness.engine, LlamaEngine) and isinstance(harness.engine._memory, CheckpointMemory)
        harness.engine.decode([Span(0, 0, [5, 6, 7, 8, 9, 10])])
        states.append(harness.engine._memory._read_whole(0).tobytes())
        harness.close()
    assert states[0] == states[1]


def test_a_library_that_fails_the_probe_drafts_nothing(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise DecodeFailed("no")

    monkeypatch.setattr(CheckpointMemory, "roll_back", refuse)
    harness = Harness(tiny_models["mamba2"], model_draft=str(tiny_models["draft"]), max_rolled_back=MOST, **EXACT)
    assert harness.engine.shape.most_drafted == 0
    logged = capsys.readouterr().err
    assert "nothing is drafted" in logged and "the draft model is not used" in logged
    harness.close()


# ── the probe ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Sequence:
    """A sequence whose rows are those of its state, which is all of its tokens."""

    def __init__(self, wrong_by: int) -> None:
        self._wrong_by = wrong_by
        self._tokens: list[int] = []

    def apply(self, operations: Sequence[Any]) -> None:
        if operations == [Forget(0)]:
            self._tokens = []

    def roll_back(self, sequence: int, length: int) -> None:
        self._tokens = self._tokens[: length + self._wrong_by]

    def decode(self, start: int, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        self._tokens += tokens
        return np.array([sum(self._tokens), len(self._tokens)], np.float32)


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize(("wrong_by", "expected"), [(0, True), (1, False), (-1, False)])
def test_a_state_of_other_tokens_fails_the_probe(most: int, wrong_by: int, expected: bool) -> None:
    sequence: Any = _Sequence(wrong_by)
    assert rolls_back(sequence, sequence.decode, most, range(5, 5 + 2 + most)) is expected


# ── the sizes of a step ──────────────────────────────────────────────────────────────────────────────────────────────

_steps = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([1, 1, 1, 1, 1, 30]), st.integers(0, 4)), min_size=1, max_size=6
)


@examples(300)
@given(_steps, st.sampled_from([8, 16, 64]), st.booleans(), st.integers(21, 26))
def test_a_step_with_drafts_is_one_micro_batch(
    step: list[tuple[int, int, int]], n_ubatch: int, unified: bool, n_ctx: int
) -> None:
    spans: list[Span] = []
    for gap, size, drafted in step:
        sequence = spans[-1].sequence + 1 + gap if spans else gap
        spans.append(Span(sequence, 20, [1] * size, True, draft=[2] * drafted, draft_source="ngram"))
    before = [len(span.draft) for span in spans]
    even_out(spans, n_ubatch=n_ubatch, n_ctx=n_ctx, unified=unified)
    assert all(len(span.draft) <= size for span, size in zip(spans, before, strict=True))
    assert all((span.draft_source is None) == (not span.draft) for span in spans)
    padding = sum(span.padding for span in spans)
    if not any(span.draft for span in spans):
        assert padding == 0
        return
    assert padding <= sum(len(span.draft) for span in spans)
    [size] = {len(span.tokens) + len(span.draft) + span.padding for span in spans}
    assert size * len(spans) <= n_ubatch
    assert 20 + size <= n_ctx
    assert unified or all(after.sequence == before.sequence + 1 for before, after in pairwise(spans))


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        ([4], [4]),
        ([4, 0], [4, 0]),
        ([4, 0, 0], [0, 0, 0]),
        ([4, 2, 1], [4, 2, 1]),
        ([4, 1, 0], [1, 1, 0]),
        ([3, 3, 0, 0], [3, 3, 0, 0]),
    ],
    ids=str,
)
def test_at_most_as_much_padding_as_drafts(drafts: list[int], expected: list[int]) -> None:
    spans = [Span(number, 0, [1], True, draft=[2] * size) for number, size in enumerate(drafts)]
    even_out(spans, n_ubatch=64, n_ctx=100, unified=True)
    assert [len(span.draft) for span in spans] == expected
