"""The fit of a model into the free memory: pure, over the memory estimate."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ModelSettings
from paddock.fleet.catalogue.gguf import Header, Tensor
from paddock.fleet.catalogue.options import freedom_of
from paddock.fleet.memory.estimate import estimate, estimate_draft
from paddock.fleet.memory.fit import Fit, Fitted, Freedom, Room
from paddock.types import EngineOptions
from tests.options import engine_options

ALL = Freedom(layers=True, experts=True, draft_layers=True, context=True, least_context=1024)
PLENTY = 1 << 50


def _header(layers: int, *, experts: int = 0) -> Header:
    """A model whose experts are much larger than the rest of a layer."""
    tensors = [Tensor("token_embd.weight", (64, 100), 10_000), Tensor("output.weight", (64, 100), 10_000)]
    for layer in range(layers):
        tensors.append(Tensor(f"blk.{layer}.attn_k.weight", (64, 64), 1_000))
        if experts:
            tensors.append(Tensor(f"blk.{layer}.ffn_up_exps.weight", (64, 64, experts), 100_000 * experts))
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.embedding_length": 64,
        "llama.context_length": 32768,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
    }
    return Header(3, metadata, {"tokenizer.ggml.tokens": 100}, len(tensors), 0, False, tensors=tuple(tensors))


def _fit(header: Header, room: Room, freedom: Freedom = ALL, draft: Header | None = None, **options: Any) -> Fitted:
    return Fit(header, draft, freedom, room).best(engine_options(**options))


def _device(header: Header, options: EngineOptions, **changes: Any) -> int:
    return estimate(header, msgspec.structs.replace(options, **changes), gpu=True).device.total


headers = st.builds(_header, st.integers(1, 20), experts=st.sampled_from([0, 4]))
rooms = st.builds(Room, st.none() | st.integers(0, 1 << 27), st.none() | st.integers(0, 1 << 28))
freedoms = st.builds(
    Freedom, layers=st.booleans(), experts=st.booleans(), draft_layers=st.booleans(), context=st.booleans(),
    least_context=st.integers(1, 40_000),
)  # fmt: skip


@given(headers, rooms, freedoms, st.none() | headers, st.booleans())
def test_a_fit_changes_only_what_it_may(
    header: Header, room: Room, freedom: Freedom, draft: Header | None, unified: bool
) -> None:
    before = engine_options(kv_unified=unified)
    after = Fit(header, draft, freedom, room).best(before).options
    assert freedom.layers or after.n_gpu_layers == before.n_gpu_layers
    assert (freedom.layers and freedom.experts) or after.tensor_overrides == before.tensor_overrides
    assert (freedom.draft_layers and draft) or after.n_gpu_layers_draft == before.n_gpu_layers_draft
    assert freedom.context or after.n_ctx == before.n_ctx
    chosen = {
        name: getattr(before, name) for name in ("n_gpu_layers", "n_gpu_layers_draft", "tensor_overrides", "n_ctx")
    }
    assert msgspec.structs.replace(after, **chosen) == before


@given(headers, st.integers(0, 1 << 27), st.none() | st.integers(0, 1 << 28), st.none() | headers)
def test_with_free_layers_the_device_always_has_room(
    header: Header, device: int, host: int | None, draft: Header | None
) -> None:
    found = _fit(header, Room(device, host), draft=draft)
    assert found.needs.device.total <= device
    assert found.is_within == (host is None or found.needs.host.total + found.needs.process <= host)


@given(headers, st.none() | headers)
def test_with_plenty_of_memory_nothing_changes(header: Header, draft: Header | None) -> None:
    for room in (Room(PLENTY, PLENTY), Room(None, PLENTY), Room(None, None)):
        found = _fit(header, room, draft=draft)
        assert (found.options, found.is_within, found.host_experts) == (engine_options(), True, 0)


@given(st.integers(1, 40), st.integers(0, 1 << 26))
def test_a_dense_model_has_the_most_layers_that_fit(layers: int, device: int) -> None:
    header = _header(layers)
    options = _fit(header, Room(device, None)).options
    count = options.n_gpu_layers
    if count == -1:
        assert _device(header, options) <= device
    else:
        assert 0 <= count <= layers
        assert _device(header, options) <= device < _device(header, options, n_gpu_layers=count + 1)


@given(st.integers(1, 30), st.integers(0, 1 << 26))
def test_experts_go_to_host_memory_before_layers(layers: int, device: int) -> None:
    header = _header(layers, experts=4)
    found = _fit(header, Room(device, None))
    count = found.host_experts
    if found.options.n_gpu_layers != -1:
        assert count == layers  # all experts are in host memory before a layer is
    if count > 0 and found.options.n_gpu_layers == -1:
        fewer = found.options.tensor_overrides[: count - 1]
        assert _device(header, found.options, tensor_overrides=fewer) > device
    assert len(found.options.tensor_overrides) == count


@given(headers, st.none() | st.integers(0, 1 << 26), st.integers(0, 1 << 28), st.booleans())
def test_the_context_is_the_largest_that_fits(header: Header, device: int | None, host: int, unified: bool) -> None:
    found = _fit(header, Room(device, host), kv_unified=unified)
    n_ctx = found.options.n_ctx
    least = 1024 * (1 if unified else 4)
    assert least <= n_ctx <= 16384
    if n_ctx < 16384 and found.is_within:
        larger = Fit(header, None, _without_context(ALL), Room(device, host))
        assert not larger.best(engine_options(n_ctx=n_ctx + 256, kv_unified=unified)).is_within or n_ctx + 256 >= 16384
    if not found.is_within:
        assert n_ctx == least


def _without_context(freedom: Freedom) -> Freedom:
    """The same without the freedom of the context."""
    return Freedom(layers=freedom.layers, experts=freedom.experts, draft_layers=freedom.draft_layers)


def test_the_draft_model_has_its_memory_first() -> None:
    model, draft = _header(8), _header(4)
    options = engine_options()
    needed = estimate_draft(draft, model, options, gpu=True).device.total
    found = _fit(model, Room(needed, None), draft=draft).options
    assert (found.n_gpu_layers, found.n_gpu_layers_draft) == (0, -1)
    found = _fit(model, Room(needed - 1, None), draft=draft).options
    assert 0 <= found.n_gpu_layers_draft < 5


def _freedom(*, is_single: bool = True, **settings: Any) -> Freedom:
    return freedom_of(ModelSettings(**settings), is_single=is_single)


def test_the_settings_say_what_may_be_chosen() -> None:
    everything = Freedom(layers=True, experts=True, draft_layers=True, context=True)
    assert _freedom() == _freedom(fit=True, is_single=False) == everything
    assert not _freedom(is_single=False).is_any
    assert not _freedom(fit=False).is_any
    assert not _freedom(fit=False, n_gpu_layers="auto").is_any
    assert not _freedom(n_gpu_layers=3, n_ctx=512).is_any
    assert not _freedom(n_gpu_layers="all", n_ctx=0).is_any
    automatic = _freedom(n_gpu_layers="auto", is_single=False)
    assert (automatic.layers, automatic.experts, automatic.context) == (True, True, False)
    for placed in ({"override_tensor": ["a=CPU"]}, {"cpu_moe": True}, {"n_cpu_moe": 1}, {"n_cpu_ffn": 1}):
        assert (_freedom(**placed).layers, _freedom(**placed).experts) == (True, False)
    assert _freedom(fit_target=[512, 256], fit_ctx=100) == Freedom(
        layers=True, experts=True, draft_layers=True, context=True, least_context=100, margin=768 << 20
    )
    assert not _freedom(n_gpu_layers_draft=2).draft_layers
