"""Draft models with libllama: an answer has the same tokens with and without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import open_engine
from paddock.errors import ModelLoadFailed
from tests.engine.harness import Harness
from tests.options import draft_params, engine_options
from tests.tiers import examples, full

# Without rounding to half precision a step of another shape gives the same text.
EXACT = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32", "n_threads": 1}
ALL = draft_params(n_max=6, p_min=0, lookup=0, priced=False)
TEXTS = ["the horse ", "an old mare stands by the brook. " * 12, "in the end it is the other one " * 9]


@pytest.fixture(scope="module", params=["llama", "draft"])
def draft(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Path:
    """The model itself, and one whose drafts are nearly always wrong."""
    return tiny_models[request.param]


@pytest.fixture(scope="module", params=[True, False], ids=["unified", "streams"])
def harnesses(
    request: pytest.FixtureRequest, tiny_models: dict[str, Path], draft: Path
) -> Iterator[tuple[Harness, Harness]]:
    """A harness with a draft model and one without."""
    options: dict[str, Any] = {"kv_unified": request.param, "n_ctx": 2048, **EXACT}
    pair = (
        Harness(tiny_models["llama"], model_draft=str(draft), **options),
        Harness(tiny_models["llama"], **options),
    )
    yield pair
    for harness in pair:
        harness.close()


@full
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_answer_is_the_same_with_and_without_drafts(
    harnesses: tuple[Harness, Harness], draft: Path, temperature: float
) -> None:
    drafting, plain = harnesses
    for id, text in enumerate(TEXTS):
        request = drafting.ask(id, text, max_tokens=60, temperature=temperature, draft=ALL)
        drafting.run()
        assert drafting.answers.pop(id) == plain.alone(id, text, max_tokens=60, temperature=temperature)
        assert request.drafted > 0
        if draft.stem == "draft":
            assert request.accepted < request.drafted / 4
        elif temperature:
            assert 0 < request.accepted < request.drafted
        else:
            assert request.accepted == request.drafted


def test_a_model_that_drafts_for_itself_needs_one_step_for_seven_tokens(tiny_models: dict[str, Path]) -> None:
    harness = Harness(tiny_models["llama"], model_draft=str(tiny_models["llama"]), **EXACT)
    harness.ask(1, "the horse ", max_tokens=71, draft=ALL)
    steps = 0
    while 1 not in harness.finished:
        harness.step()
        steps += 1
    assert steps == 1 + 10
    harness.close()


_Requests = st.lists(
    st.tuples(
        st.sampled_from([*TEXTS, "a", "the horse and ", "an old mare "]),
        st.integers(1, 30),
        st.integers(0, 9),
        st.sampled_from([0.0, 0.8]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@examples(15)
@given(requests=_Requests)
def test_arrivals_and_cancellations_change_no_answer(
    harnesses: tuple[Harness, Harness], requests: list[tuple[str, int, int, float, bool]]
) -> None:
    """Also if another request used the slot of the draft model in the meantime."""
    drafting, plain = harnesses
    drafting.answers.clear()
    for id, (text, size, steps, temperature, cancelled) in enumerate(requests):
        params = draft_params(n_max=1 + id, p_min=0.3 * (id % 3), priced=False)
        drafting.ask(id, text, max_tokens=size, temperature=temperature, draft=params)
        for _ in range(steps):
            drafting.step()
        if cancelled:
            drafting.scheduler.remove(id)
    drafting.run()
    for id, (text, size, _, temperature, cancelled) in enumerate(requests):
        expected = plain.alone(id, text, max_tokens=size, temperature=temperature)
        answer = drafting.answers[id]
        assert answer == expected[: len(answer)]
        assert cancelled or len(answer) == size


def test_a_draft_model_without_room_for_all_requests_drafts_for_some(tiny_models: dict[str, Path], draft: Path) -> None:
    """The requests share cells of the large model, but not of the draft model."""
    harness = Harness(tiny_models["llama"], model_draft=str(draft), n_ctx=512, **EXACT)
    requests = [harness.ask(id, TEXTS[1], max_tokens=40, draft=ALL) for id in range(2)]
    assert requests[0].prompt_size * 2 > 512
    while not any(request.drafted for request in requests):
        harness.step()
    assert sum(request.drafted > 0 for request in requests) == 1
    harness.run()
    assert harness.answers[0] == harness.answers[1]
    harness.close()


def test_a_draft_model_that_does_not_fit_is_refused(tiny_models: dict[str, Path]) -> None:
    def refusal(draft: str) -> str:
        options = engine_options(n_ctx=256, n_threads=1, model_draft=str(tiny_models[draft]))
        with pytest.raises(ModelLoadFailed) as caught:
            open_engine(str(tiny_models["llama"]), options, lambda _: None)
        return caught.value.message

    assert refusal("caller").startswith("caller.gguf cannot be the draft model: its token 5 is b'[THINK]' instead of")
    assert "its vocabulary is of another kind" in refusal("embedding")
    assert "its memory cannot be cut" in refusal("recurrent")


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_a_model_whose_memory_cannot_be_cut_does_not_draft_and_logs_it(
    tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    harness = Harness(tiny_models[kind], model_draft=str(tiny_models["draft"]))
    assert capsys.readouterr().err.count("the draft model is not used: this model's memory cannot be cut") == 1
    request = harness.ask(1, "the horse ", draft=ALL)
    harness.run()
    assert (harness.engine.info.draft_slots, request.drafted, len(harness.answers[1])) == (0, 0, 12)
    harness.close()


@full
@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "streams"])
def test_a_draft_model_for_a_model_with_sliding_windows(
    tiny_models: dict[str, Path], draft: Path, kv_unified: bool
) -> None:
    options: dict[str, Any] = {"kv_unified": kv_unified, **EXACT}
    drafting = Harness(tiny_models["sliding_window"], model_draft=str(draft), **options)
    plain = Harness(tiny_models["sliding_window"], **options)
    requests = [drafting.ask(id, text, max_tokens=100, draft=ALL) for id, text in enumerate(TEXTS[:2])]
    drafting.run()
    for id, (text, request) in enumerate(zip(TEXTS, requests, strict=False)):
        assert drafting.answers[id] == plain.alone(id, text, max_tokens=100)
        assert request.drafted > 0
    drafting.close()
    plain.close()


def test_a_deterministic_server_does_not_draft(
    tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    harness = Harness(tiny_models["llama"], model_draft=str(tiny_models["draft"]), deterministic=True)
    assert "the draft model is not used: deterministic answers" in capsys.readouterr().err
    assert harness.engine.info.draft_slots == 0
    harness.close()
