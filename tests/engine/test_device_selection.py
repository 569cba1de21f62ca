"""Selected tokens on the CPU's backend: the tokens are those without selection."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.engine.device_selection import DEVICE_SELECTION, wants_selection
from paddock.engine.libllama import lib
from paddock.engine.libllama.functions import SAMPLERS
from paddock.engine.llama import LlamaEngine
from paddock.engine.pause import Pause
from paddock.engine.selected_rows import locate_groups
from paddock.types import Forget, SamplingParams, Span
from tests.options import engine_options
from tests.tiers import examples, full

_TOOL = Path(__file__).parents[2] / "tools" / "random_model.py"
_N_VOCAB = 3003
_SEQUENCES = 4
pytestmark = pytest.mark.skipif(not all(lib.has(name) for name in SAMPLERS), reason="a library without samplers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its vocabulary is large enough, and no multiple of the size of a group."""
    spec = importlib.util.spec_from_file_location("random_model", _TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool  # its dataclass needs this
    spec.loader.exec_module(tool)
    path = tmp_path_factory.mktemp("selection") / "model.gguf"
    tool.write(tool.Shape(1, 64, 64, 2, 1, _N_VOCAB, 1024), path)
    return path


def _open(model: Path, selects: str, **options: Any) -> LlamaEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DEVICE_SELECTION, selects)
        engine = LlamaEngine(
            model, engine_options(n_ctx=512, n_threads=1, parallel=_SEQUENCES, **options), lambda _: None
        )
    assert (engine._selection is not None) == (selects == "1")
    return engine


@pytest.fixture(scope="module", params=[True, False], ids=["unified", "streams"])
def engines(request: pytest.FixtureRequest, model: Path) -> Iterator[tuple[LlamaEngine, LlamaEngine]]:
    """One without selection, and one with it."""
    both = [_open(model, selects, kv_unified=request.param) for selects in ("0", "1")]
    yield both[0], both[1]
    for engine in both:
        engine.close()


class _Answers:
    """Answers in sequences of their own, step by step."""

    def __init__(self, engine: LlamaEngine, prompts: list[list[int]], params: list[SamplingParams]) -> None:
        self._engine = engine
        self.tokens = [list(prompt) for prompt in prompts]
        self.samplers = [engine.sampler(one, prompt) for one, prompt in zip(params, prompts, strict=True)]
        self._done = [0] * len(prompts)

    def step(self, which: list[int], draft: tuple[int, ...] = (), targets: bool = False) -> bool:
        """Returns whether tokens were selected."""
        spans = []
        for index in which:
            new = self.tokens[index][self._done[index] :]
            span = Span(index, self._done[index], new, self.samplers[index], draft=list(draft))
            if targets and len(new) > 1:
                span.targets = new[1:]
            spans.append(span)
        self._engine.submit(spans)
        selection = self._engine._selection
        is_selected = selection is not None and selection.is_selected
        for index, result in zip(which, self._engine.collect(), strict=True):
            assert result is not None and result.token is not None
            accepted = [result.token, *(one.token for one in result.more if one.token is not None)]
            self._done[index] = len(self.tokens[index]) + len(accepted) - 1
            self.tokens[index] += accepted
        return is_selected

    def forget(self) -> None:
        self._engine.apply([Forget(sequence) for sequence in range(len(self.tokens))])


_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    top_k=st.sampled_from([40, 40, 5, 60]),
    top_p=st.sampled_from([0.95, 1.0]),
    min_p=st.sampled_from([0.05, 0.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    dry_multiplier=st.sampled_from([0.0, 0.0, 0.8]),
    logit_bias=st.sampled_from([(), ((5, -1.0), (2900, -100.0), (3002, -2.0)), ((7, 30.0),)]),
    n_probs=st.sampled_from([-1, -1, -1, 2]),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 2**32),
)
_prompts = st.lists(st.integers(0, _N_VOCAB - 1), min_size=1, max_size=12)
_steps = st.tuples(
    st.sets(st.integers(0, _SEQUENCES - 1), min_size=1).map(sorted),
    st.sampled_from([(), (), (), (4,), (9, 9, 9)]),
    st.sampled_from([False, False, True]),
)


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(_prompts, min_size=_SEQUENCES, max_size=_SEQUENCES),
    st.lists(_params, min_size=_SEQUENCES, max_size=_SEQUENCES),
    st.lists(_steps, min_size=1, max_size=12),
)
def test_tokens_are_the_same(
    engines: tuple[LlamaEngine, LlamaEngine],
    prompts: list[list[int]],
    params: list[SamplingParams],
    steps: list[tuple[list[int], tuple[int, ...], bool]],
) -> None:
    plain, selecting = (_Answers(engine, prompts, params) for engine in engines)
    for which, draft, targets in steps:
        assert not plain.step(which, draft, targets)
        selecting.step(which, draft, targets)
        assert plain.tokens == selecting.tokens
    plain.forget()
    selecting.forget()


def _usual(engine: LlamaEngine, count: int = _SEQUENCES, **changes: Any) -> _Answers:
    if engine._selection is not None:
        engine._selection.pause = Pause()  # other tests have used the engine
    prompts = [[10 * number + place for place in range(5)] for number in range(1, count + 1)]
    return _Answers(engine, prompts, [SamplingParams(seed=seed, **changes) for seed in range(count)])


def test_usual_steps_are_selected(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    answers = _usual(engines[1])
    everyone = list(range(_SEQUENCES))
    assert [answers.step(everyone) for _ in range(6)] == [True] * 6
    # Sequences with gaps between them are computed one by one, unless their cells are shared.
    assert answers.step([0, 2]) == engines[1]._unified
    assert answers.step([1, 2])
    assert not answers.step([1], draft=(3, 3))
    answers.forget()
    answers = _usual(engines[1], 1, n_probs=2)
    assert not answers.step([0])
    answers.forget()


def test_a_change_of_the_kind_without_a_change_of_the_shape(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    """Without more, libllama would use the graph of the step before."""
    plain, selecting = (_usual(engine, 1) for engine in engines)
    for step in range(8):
        for answers in (plain, selecting):
            answers.samplers[0].is_selectable = step % 3 != 1  # a cached property
            answers.step([0])
    assert plain.tokens == selecting.tokens
    plain.forget()
    selecting.forget()


def test_an_undecided_step_is_repeated(
    engines: tuple[LlamaEngine, LlamaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with many equal logits. Then nothing is selected for a while."""
    plain, selecting = (_usual(engine, 2) for engine in engines)
    everyone = [0, 1]

    def tied(*arguments: Any, **named: Any) -> Any:
        found = locate_groups(*arguments, **named)
        assert found is not None
        return found._replace(bound=found.groups.max(axis=(1, 2)))

    plain.step(everyone)
    with monkeypatch.context() as patch:
        patch.setattr("paddock.engine.device_selection.locate_groups", tied)
        assert selecting.step(everyone)
    kinds = []
    for _ in range(80):
        plain.step(everyone)
        kinds.append(selecting.step(everyone))
    assert plain.tokens == selecting.tokens
    assert kinds == sorted(kinds) and kinds[-1] and not kinds[60]
    plain.forget()
    selecting.forget()


def test_many_rows_of_one_step(model: Path) -> None:
    """Probabilities of a long prompt need so many rows that samplers are detached, and later attached again."""
    plain, selecting = (_open(model, selects, n_batch=512) for selects in ("0", "1"))
    both = [_Answers(engine, [[*range(100, 300)]], [SamplingParams(seed=1)]) for engine in (plain, selecting)]
    for answers in both:
        answers.step([0], targets=True)
    assert selecting._selection is not None and not selecting._selection._chains
    kinds = []
    for _ in range(70):
        both[0].step([0])
        kinds.append(both[1].step([0]))
    assert both[0].tokens == both[1].tokens
    assert kinds == sorted(kinds) and kinds[-1] and not kinds[50]
    plain.close()
    selecting.close()


@full
def test_the_demo_model(demo_model: Path) -> None:
    plain, selecting = (_open(demo_model, selects, kv_unified=False) for selects in ("0", "1"))
    texts = ["Once upon a time", "The capital of France is", "def main():", "A list of fruits: apple,"]
    prompts = [plain.vocab.tokenize(text, add_special=True, parse_special=True) for text in texts]
    params = [
        SamplingParams(seed=1),
        SamplingParams(temperature=0.0, repeat_penalty=1.1),
        SamplingParams(seed=2, top_k=0, top_p=1.0, min_p=0.05),
        SamplingParams(seed=3, dry_multiplier=0.8, presence_penalty=0.5),
    ]
    both = [_Answers(engine, prompts, params) for engine in (plain, selecting)]
    kinds = []
    for _ in range(12):
        both[0].step([0, 1, 2, 3])
        kinds.append(both[1].step([0, 1, 2, 3]))
    assert both[0].tokens == both[1].tokens
    assert all(kinds[1:])  # the prompts differ in length
    plain.close()
    selecting.close()


def test_steps_of_few_rows_are_copied_by_default(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the environment says nothing. The test at the start has one row."""
    monkeypatch.delenv(DEVICE_SELECTION, raising=False)
    monkeypatch.setattr("paddock.engine.llama.wants_selection", lambda *_, **__: True)
    engine = LlamaEngine(model, engine_options(n_ctx=512, n_threads=1, parallel=_SEQUENCES), lambda _: None)
    assert engine._selection is not None
    answers = _usual(engine, 4)
    answers.step([0, 1, 2, 3])
    assert not answers.step([0])
    assert answers.step([0, 1, 2, 3])
    engine.close()


def test_only_a_gpu_selects_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEVICE_SELECTION, raising=False)
    assert wants_selection(engine_options(), is_on_gpu=True)
    assert not wants_selection(engine_options(), is_on_gpu=False)
    assert not wants_selection(engine_options(rpc=["a:1"]), is_on_gpu=True)
    assert not wants_selection(engine_options(deterministic=True), is_on_gpu=True)
    monkeypatch.setenv(DEVICE_SELECTION, "1")
    assert wants_selection(engine_options(), is_on_gpu=False)
    monkeypatch.setenv(DEVICE_SELECTION, "0")
    assert not wants_selection(engine_options(), is_on_gpu=True)


def test_a_library_with_another_layout_does_not_select(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of the interface is one place further."""
    name = "llama_sampler_init"
    original = getattr(lib, name)

    def shifted(interface: Any, data: Any) -> Any:
        return original(ctypes.addressof(interface._obj) + ctypes.sizeof(ctypes.c_void_p), data)

    monkeypatch.setitem(vars(lib), name, shifted)
    monkeypatch.setenv(DEVICE_SELECTION, "1")
    engine = LlamaEngine(model, engine_options(n_ctx=512, n_threads=1, parallel=2), lambda _: None)
    assert engine._selection is None
    answers = _usual(engine, 2)
    assert not answers.step([0, 1])
    engine.close()


def test_a_library_without_samplers_does_not_select(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(lib), "llama_set_sampler")
    monkeypatch.setenv(DEVICE_SELECTION, "1")
    engine = LlamaEngine(model, engine_options(n_ctx=512, n_threads=1, parallel=2), lambda _: None)
    assert engine._selection is None
    engine.close()
