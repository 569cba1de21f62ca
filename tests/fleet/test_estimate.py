"""Memory estimates against libllama's own figures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import open_engine, open_pooled_engine
from paddock.fleet.catalogue.gguf import Header, Tensor
from paddock.fleet.catalogue.headers import read_header
from paddock.fleet.memory.estimate import Estimate, estimate, estimate_draft
from paddock.fleet.memory.fit import Fit, Freedom, Room
from tests.options import engine_options, new_model
from tests.tiers import full

_BUFFER = re.compile(r"(KV|RS|compute|output) buffer size =\s*([\d.]+) MiB")
_MIB = 1 << 20
# libllama reports its buffers with two decimals of a MiB.
_ROUNDING = 0.01 * _MIB


def _reported(log: str) -> list[tuple[str, float]]:
    """Libllama's buffers. Whenever it plans its graphs again, new compute buffers take the place of the old ones."""
    contexts: list[list[tuple[str, float]]] = []
    for line in log.splitlines():
        if "constructing llama_context" in line:
            contexts.append([])
        elif "reserving ..." in line:
            contexts[-1] = [buffer for buffer in contexts[-1] if buffer[0] != "compute"]
        elif found := _BUFFER.search(line):
            contexts[-1].append((found[1], float(found[2]) * _MIB))
    return [buffer for buffers in contexts for buffer in buffers]


def _compare(path: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[Estimate, float, float]:
    """Open the model and compare weights and cache. Returns the estimate, and the compute buffers as estimated and as
    reported.
    """
    opened = engine_options(n_threads=2, n_gpu_layers=0, verbose=True, **options)
    capsys.readouterr()
    engine = (open_pooled_engine if opened.pooling else open_engine)(str(path), opened, lambda _: None)
    size = engine.info.size_bytes
    reported = _reported(capsys.readouterr().err)
    engine.close()
    estimated = estimate(read_header(path), opened, gpu=False)
    assert estimated.host.weights == pytest.approx(size, rel=0.01)
    assert estimated.host.cache == pytest.approx(
        sum(size for kind, size in reported if kind in ("KV", "RS")), abs=_ROUNDING
    )
    assert estimated.device.total == 0
    return estimated, estimated.host.compute, sum(size for kind, size in reported if kind in ("compute", "output"))


@full
@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 2048},
        {"n_ctx": 1000, "n_ubatch": 128},
        {"n_ctx": 2048, "parallel": 3, "kv_unified": False},
        {"n_ctx": 2048, "parallel": 1, "kv_unified": False},
        {"n_ctx": 2048, "flash_attn": "off"},
        {"n_ctx": 2048, "cache_type_k": "q8_0", "cache_type_v": "q4_0"},
    ],
    ids=str,
)
def test_the_demo_model(demo_model: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any]) -> None:
    _, compute, measured = _compare(demo_model, capsys, **options)
    assert compute == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("options", [{}, {"n_ctx": 0}, {"n_ctx": 4096, "kv_unified": False}], ids=str)
def test_draft_model(tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str], options: dict[str, Any]) -> None:
    target, draft = tiny_models["llama"], tiny_models["draft"]
    opened = engine_options(n_threads=2, n_gpu_layers=0, verbose=True, model_draft=str(draft), **options)
    capsys.readouterr()
    open_engine(str(target), opened, lambda _: None).close()
    reported = _reported(capsys.readouterr().err)
    headers = read_header(draft), read_header(target)
    estimated = estimate(headers[1], opened, gpu=False) + estimate_draft(*headers, opened, gpu=False)
    assert estimated.host.weights == sum(tensor.size for header in headers for tensor in header.tensors)
    assert estimated.host.cache == pytest.approx(
        sum(size for kind, size in reported if kind == "KV"), abs=2 * _ROUNDING
    )
    computed = sum(size for kind, size in reported if kind in ("compute", "output"))
    assert estimated.host.compute == pytest.approx(computed, rel=0.3)


@pytest.mark.parametrize(
    "kind", ["llama", "sliding_window", "recurrent", "hybrid", "delta_net", "mamba2", "convolution"]
)
@pytest.mark.parametrize("options", [{}, {"kv_unified": False}, {"flash_attn": "off"}], ids=str)
def test_architectures(
    tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str], kind: str, options: dict[str, Any]
) -> None:
    _compare(tiny_models[kind], capsys, n_ctx=2048, **options)


@pytest.mark.parametrize("kind", ["delta_net", "mamba2", "convolution"])
def test_earlier_states(tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str], kind: str) -> None:
    four, *_ = _compare(tiny_models[kind], capsys, n_ctx=2048, max_rolled_back=4)
    none, *_ = _compare(tiny_models[kind], capsys, n_ctx=2048, max_rolled_back=0)
    one, *_ = _compare(tiny_models[kind], capsys, n_ctx=2048, max_rolled_back=1)
    assert four.host.cache - none.host.cache == 4 * (one.host.cache - none.host.cache) > 0


@pytest.mark.parametrize(("parallel", "most"), [(1, 4), (4, 3), (16, 1), (64, 0)])
def test_earlier_states_take_at_most_a_quarter_of_the_weights(
    tiny_models: dict[str, Path], parallel: int, most: int
) -> None:
    path = tiny_models["delta_net"]
    completed = new_model("a", str(path)).completed
    assert completed(engine_options(parallel=parallel, max_rolled_back=4)).max_rolled_back == most
    assert completed(engine_options(parallel=parallel, max_rolled_back=0)).max_rolled_back == 0


@pytest.mark.parametrize("kind", ["llama", "recurrent", "hybrid", "embedding"])
def test_models_without_earlier_states(tiny_models: dict[str, Path], kind: str) -> None:
    model = new_model("a", str(tiny_models[kind]))
    assert model.completed(engine_options(max_rolled_back=4)).max_rolled_back == 0


@pytest.mark.parametrize("unified", [True, False])
def test_sliding_windows(tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str], unified: bool) -> None:
    path, options = tiny_models["sliding_window"], {"n_ctx": 8192, "kv_unified": unified, "n_ubatch": 256}
    windows, *_ = _compare(path, capsys, **options)
    whole, *_ = _compare(path, capsys, **options, swa_full=True)
    assert windows.host.cache < 0.8 * whole.host.cache


@pytest.mark.parametrize(("kind", "pooling"), [("embedding", "mean"), ("reranking", "rank"), ("llama", "mean")])
def test_pooling_models(
    tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str], kind: str, pooling: Any
) -> None:
    _, compute, measured = _compare(tiny_models[kind], capsys, pooling=pooling)
    assert compute == pytest.approx(measured, rel=0.1)


def test_further_models(real_models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _compare(real_models / "stories260K.gguf", capsys)
    _, compute, measured = _compare(real_models / "all-MiniLM-L6-v2.Q3_K_S.gguf", capsys, pooling="mean")
    assert compute == pytest.approx(measured, rel=0.15)
    _compare(real_models / "bert-mini-reranker.F16.gguf", capsys, pooling="rank")


# ── made-up headers ──────────────────────────────────────────────────────────────────────────────────────────────────


def _header(layers: int, more: dict[str, Any] | None = None, *, tied: bool = False) -> Header:
    """Layers of 1,000 bytes, an input and an output of 10,000 bytes each."""
    parts = [Tensor(f"blk.{layer}.attn_k.weight", (64, 64), 1000) for layer in range(layers)]
    ends = [Tensor("token_embd.weight", (64, 100), 10_000)] + [Tensor("output.weight", (64, 100), 10_000)] * (not tied)
    reported = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.embedding_length": 64,
        "llama.context_length": 4096,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        **(more or {}),
    }
    lengths = {"tokenizer.ggml.tokens": 100}
    return Header(3, reported, lengths, len(parts), 0, False, tensors=(*parts, *ends))


def test_heads_per_layer() -> None:
    header = _header(3)
    one = estimate(header, engine_options(), gpu=False).host.cache
    each = replace(header, arrays={"llama.attention.head_count_kv": (4, 0, 2)})
    assert one == 3 * 16384 * 2 * 32 * 2
    assert estimate(each, engine_options(), gpu=False).host.cache == one
    shared = _header(3, {"llama.attention.shared_kv_layers": 1})
    assert estimate(shared, engine_options(), gpu=False).host.cache == one * 2 // 3
    latent = _header(3, {"llama.attention.key_length_mla": 8, "llama.attention.value_length_mla": 8})
    assert estimate(latent, engine_options(), gpu=False).host.cache == one // 2


def test_a_tied_output_is_copied_to_the_device() -> None:
    tied = estimate(_header(2, tied=True), engine_options(), gpu=True)
    assert (tied.host.weights, tied.device.weights) == (10_000, 12_000)
    apart = estimate(_header(2), engine_options(), gpu=True)
    assert (apart.host.weights, apart.device.weights) == (10_000, 12_000)


@given(layers=st.integers(0, 40), offloaded=st.integers(-1, 60), tied=st.booleans(), unified=st.booleans())
def test_each_layer_is_on_one_device(layers: int, offloaded: int, tied: bool, unified: bool) -> None:
    header = _header(layers, tied=tied)
    options = engine_options(n_gpu_layers=offloaded, kv_unified=unified)
    here, split = estimate(header, options, gpu=False), estimate(header, options, gpu=True)
    copied = 10_000 if tied and offloaded else 0
    assert split.host.weights + split.device.weights == here.host.weights + copied
    assert split.host.cache + split.device.cache == here.host.cache
    if offloaded == 0:
        assert split == here


@given(small=st.integers(1, 60_000), more=st.integers(0, 60_000), parallel=st.integers(1, 64), unified=st.booleans())
def test_memory_grows_with_the_context(small: int, more: int, parallel: int, unified: bool) -> None:
    header = _header(4)

    def total(n_ctx: int) -> int:
        return estimate(header, engine_options(n_ctx=n_ctx, parallel=parallel, kv_unified=unified), gpu=False).total

    assert total(small) <= total(small + more)


_KEYS = [
    *("block_count", "embedding_length", "context_length", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "ssm.conv_kernel", "wkv.head_size", "kda.head_dim", "shortconv.l_cache"),
]
_nonsense = st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.booleans()


@given(
    metadata=st.dictionaries(st.sampled_from(_KEYS), _nonsense),
    heads=st.lists(st.integers(-9, 9) | st.floats(), max_size=4),
)
def test_invalid_headers_do_not_raise(metadata: dict[str, Any], heads: list[float]) -> None:
    header = _header(3, {f"llama.{key}": value for key, value in metadata.items()})
    header = replace(header, arrays={"llama.attention.head_count_kv": tuple(heads)})
    estimated = estimate(header, engine_options(), gpu=True)
    assert estimated.total >= 0
    fit = Fit(header, None, Freedom(layers=True, experts=True, context=True), Room(0, 0))
    assert fit.best(engine_options()).options.n_gpu_layers <= 1
