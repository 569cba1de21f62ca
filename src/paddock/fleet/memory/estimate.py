"""Estimates the memory of a model from its header and options. Pure.

It follows libllama's allocations: weights and the KV cache are exact for architectures with per-layer caches; compute
buffers are within a few per cent where the logits dominate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from paddock.config.tensor_patterns import compiled
from paddock.fleet.catalogue.gguf import Header, Tensor, stored_size
from paddock.fleet.catalogue.kinds import ENCODERS
from paddock.types import EngineOptions

_FLOAT = 4
# A worker without a model, as measured (docs/lab.md).
_PROCESS = 64 << 20
# ggml type numbers of the KV cache types.
_CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
# libllama rounds the cells of a sequence up to a multiple of this.
_CELLS = 256
# Sequences beyond the running ones, in the unified layout.
_SPARE = 4
# Inputs in one step of an embedding model.
_MOST_INPUTS = 64
# The draft model's sequences and tokens per step.
_DRAFT_ON_CPU, _DRAFT_ON_GPU = (2, 64), (8, 512)
# What Whisper's encoder, which most projectors for audio have, computes of half a minute.
_AUDIO_FRAMES = 1500
# A limit for broken headers; libllama's own limit is lower.
_MOST_LAYERS = 1024
_LAYER = re.compile(r"blk\.(\d+)\.")
# Tensors that are read by row and always stay on the host.
_INPUTS = ("token_embd.weight", "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")
_RECURRENT = ("ssm_", "shortconv", "time_mix_")
# One layer of so many attends to the whole context and the others have a window, where the header does not say.
_PERIODS = {
    name: period
    for period, names in (
        (2, "gemma2 gpt-oss"),
        (4, "llama4 cohere2 cohere2moe exaone4 exaone-moe olmo2 afmoe mellum smallthinker"),
        (5, "gemma3n"),
        (6, "gemma3"),
        (8, "plamo3"),
    )
    for name in names.split()
}
# Where libllama can set recurrent states back by some tokens. The copies for it take at most this part of the weights.
_SET_BACK = ("lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe")
_PART_FOR_STATES = 4
# There it is the first of them and not the last.
_WHOLE_FIRST = ("cohere2moe", "smallthinker")
# Windows that libllama knows itself.
_WINDOWS = {"gemma2": 4096, "llama4": 8192}
_KEYS = ("attn_k.", "attn_k_b.", "attn_kv_a_mqa.", "attn_kv_b.")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes on one device."""

    weights: int = 0
    cache: int = 0
    """The KV cache of the whole context, or the states of recurrent layers."""
    compute: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.weights + other.weights, self.cache + other.cache, self.compute + other.compute)


@dataclass(frozen=True, slots=True)
class Estimate:
    host: Footprint
    device: Footprint
    prefixes: int
    """The limit of the prefix cache in host memory. All models share `cache_ram`, and a memory limit reduces it."""
    process: int = 0
    """The worker without the model: Python and its libraries."""

    @property
    def total(self) -> int:
        return self.host.total + self.device.total

    @property
    def context(self) -> Estimate:
        """Without the weights and the process."""
        return Estimate(replace(self.host, weights=0), replace(self.device, weights=0), 0)

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(
            self.host + other.host,
            self.device + other.device,
            self.prefixes + other.prefixes,
            max(self.process, other.process),
        )


def estimate(header: Header, options: EngineOptions, *, gpu: bool) -> Estimate:
    """The memory of a worker with this model and these options; `gpu`: libllama can use a GPU."""
    model = _Model(header)
    context = _Context.of(model, options)
    layers = model.n_layer + 1
    offloaded = 0 if not gpu else layers if options.n_gpu_layers < 0 else min(options.n_gpu_layers, layers)
    first = layers - offloaded  # the output counts as the last layer
    weights, caches = model.weights(options), [model.cache(layer, context, options) for layer in range(model.n_layer)]
    on_device = sum(weights[first:])
    if offloaded and not model.has_output:
        on_device += model.embeddings  # a second copy on the GPU
    everywhere = model.inputs + sum(model.weights())
    cached_on_host = first if options.kv_offload else len(caches)
    mask, steps = model.masks(context, options), model.compute(context, options)
    at_output = context.outputs * model.n_vocab * _FLOAT
    return Estimate(
        Footprint(
            everywhere - sum(weights[first:]),
            sum(caches[:cached_on_host]),
            at_output + (steps if offloaded < layers else mask + context.rows * model.n_embd * _FLOAT),
        ),
        Footprint(on_device, sum(caches[cached_on_host:]), steps if offloaded else 0),
        0 if options.pooling is not None else options.cache_ram_bytes,
        _PROCESS,
    )


def estimate_draft(draft: Header, target: Header, options: EngineOptions, *, gpu: bool) -> Estimate:
    """The memory of a draft model: the target's context, but fewer sequences and smaller steps."""
    trained = options.longest_context(_Model(target).n_ctx_train)
    answers, step = _DRAFT_ON_GPU if gpu and options.n_gpu_layers else _DRAFT_ON_CPU
    options = msgspec.structs.replace(
        options.placed_as_draft(),
        n_ctx=min(options.n_ctx or trained, trained * options.parallel),
        parallel=min(options.parallel, answers),
        kv_unified=True,
        n_batch=step,
        n_ubatch=step,
        cache_ram_bytes=0,
    )
    return estimate(draft, options, gpu=gpu)


def estimate_projector(projector: Header, options: EngineOptions, *, gpu: bool) -> Estimate:
    """The memory of a projector: its weights, and about what it takes to encode an image of its usual size."""
    weights = sum(tensor.size for tensor in projector.tensors)

    def number(name: str) -> int:
        found = (projector.metadata.get(f"clip.{kind}.{name}") for kind in ("vision", "audio"))
        return next((value for value in found if isinstance(value, int)), 0)

    patches = (number("image_size") // max(number("patch_size"), 1)) ** 2 or _AUDIO_FRAMES
    rows = 2 * patches * (number("feed_forward_length") + 4 * number("embedding_length"))
    step = Footprint(compute=_FLOAT * (rows + number("attention.head_count") * patches**2))
    stored = Footprint(weights=weights)
    is_on_gpu = gpu and options.mmproj_offload and options.n_gpu_layers != 0
    return Estimate(Footprint(), stored + step, 0) if is_on_gpu else Estimate(stored + step, Footprint(), 0)


def affordable_rollback(header: Header, options: EngineOptions) -> int:
    """By how many tokens recurrent states can be set back: as many as the options allow, if that takes little memory
    beside the weights.
    """
    model = _Model(header)
    if not model.sets_back(options):
        return 0
    states = _Context.of(model, options).sequences * sum(map(model.state_bytes, range(model.n_layer)))
    weights = model.inputs + sum(model.weights())
    return min(options.max_rolled_back, weights // _PART_FOR_STATES // max(states, 1))


def layer_count(header: Header) -> int:
    """The number of layers, counting the output as one."""
    return _Model(header).n_layer + 1


def expert_layers(header: Header) -> int:
    """The number of layers up to the last one that has experts; 0 for a dense model."""
    found = [_LAYER.search(tensor.name) for tensor in header.tensors if "exps" in tensor.name]
    return max((int(match[1]) + 1 for match in found if match is not None), default=0)


def trained_context(header: Header) -> int:
    """0 if the header does not say."""
    return _Model(header).n_ctx_train


@dataclass(frozen=True, slots=True)
class _Context:
    """The sizes of the libllama context."""

    cells: int
    """In total."""
    per_sequence: int
    """Cells that one sequence attends to."""
    sequences: int
    rows: int
    """Tokens in one pass of the graph."""
    outputs: int

    @property
    def streams(self) -> int:
        return self.cells // max(self.per_sequence, 1)

    def windowed(self, window: int) -> int:
        """Cells of a stream in layers with a window: those of all its sequences, and of one pass."""
        sequences = self.sequences if self.streams == 1 else 1
        return _up(min(self.per_sequence, window * sequences + self.rows), _CELLS)

    @classmethod
    def of(cls, model: _Model, options: EngineOptions) -> _Context:
        trained = model.n_ctx_train or options.n_ctx
        if options.pooling is None:
            trained = options.longest_context(trained)
        else:
            longest = min(trained, options.n_batch, options.n_ctx or trained)
            step = min(options.n_ubatch, options.n_batch)
            sequences = 1 if options.deterministic else min(_MOST_INPUTS, step)
            rows = _up(max(step, longest), sequences)
            cells = _up(rows, _CELLS)
            return cls(cells, cells if model.has_cache else rows, sequences, rows, sequences)
        n_ctx = min(options.n_ctx or trained, trained * options.parallel)
        rows = min(options.n_ubatch, options.n_batch, n_ctx)
        if options.kv_unified or options.parallel == 1:
            cells = _up(n_ctx, _CELLS)
            return cls(cells, cells, options.parallel + 1, rows, options.parallel + 1 + _SPARE)
        cells = _up(_up(n_ctx, _CELLS) // options.parallel, _CELLS)
        return cls(cells * options.parallel, cells, options.parallel, rows, options.parallel)


class _Model:
    """The hyperparameters in a header, by libllama's names; 0 where the header does not say."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._architecture = header.metadata.get("general.architecture")
        self.n_layer = min(self._number("block_count"), _MOST_LAYERS)
        self.n_embd = self._number("embedding_length")
        self.n_ctx_train = self._number("context_length")
        self.n_vocab = header.lengths.get("tokenizer.ggml.tokens", 0) or self._number("vocab_size")
        self.has_cache = self._architecture not in ENCODERS
        self._tensors = [self._placed(tensor) for tensor in header.tensors]
        self._parts: dict[int, list[str]] = {}
        for layer, name, _ in self._tensors:
            self._parts.setdefault(layer, []).append(name)
        self.has_output = any(name.startswith("output.") for name in self._parts.get(self.n_layer, ()))

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def weights(self, options: EngineOptions | None = None) -> list[int]:
        """Bytes of each layer; the output is the last. With options, without the tensors that they keep on the host."""
        overrides = [(compiled(pattern), buffer) for pattern, buffer in (options.tensor_overrides if options else [])]
        sizes = [0] * (self.n_layer + 1)
        for (layer, _, size), tensor in zip(self._tensors, self._header.tensors, strict=True):
            buffer = next((buffer for pattern, buffer in overrides if pattern.search(tensor.name)), "")
            if layer >= 0 and buffer != "CPU":
                sizes[layer] += size
        return sizes

    @property
    def inputs(self) -> int:
        return sum(size for layer, _, size in self._tensors if layer < 0)

    @property
    def embeddings(self) -> int:
        return sum(size for _, name, size in self._tensors if name == _INPUTS[0])

    def _placed(self, tensor: Tensor) -> tuple[int, str, int]:
        """Its layer (-1: input, n_layer: output), its name in the layer, and its size."""
        match = _LAYER.search(tensor.name)
        if match is not None and int(match[1]) < self.n_layer:
            return int(match[1]), tensor.name[match.end() :], tensor.size
        return -1 if tensor.name in _INPUTS else self.n_layer, tensor.name, tensor.size

    # ── KV cache ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def cache(self, layer: int, context: _Context, options: EngineOptions) -> int:
        parts, state = self._parts.get(layer, []), self.state_bytes(layer)
        size = context.sequences * state * (1 + (options.max_rolled_back if self.sets_back(options) else 0))
        attends = any(part.startswith(_KEYS) for part in parts) or (
            any(part.startswith("attn_qkv.") for part in parts) and not state
        )
        if attends and self.has_cache and layer < self.n_layer - self._number("attention.shared_kv_layers"):
            keys, values = self._widths(layer)
            if options.flash_attn == "off" and values:  # then all layers are as wide as the widest
                values = max(self._widths(other)[1] for other in range(self.n_layer))
            cells = context.windowed(self._window) if self._is_windowed(layer, options) else context.per_sequence
            cells *= context.streams
            size += cells * stored_size(_CACHE_TYPES[options.cache_type_k], keys)
            size += cells * stored_size(_CACHE_TYPES[options.cache_type_v], values)
        return size

    def state_bytes(self, layer: int) -> int:
        """The state of a sequence in this layer; 0: it is not recurrent."""
        is_recurrent = any(part.startswith(_RECURRENT) for part in self._parts.get(layer, []))
        return self._state() * _FLOAT if is_recurrent else 0

    def sets_back(self, options: EngineOptions) -> bool:
        """Whether earlier states are kept too."""
        return self._architecture in _SET_BACK and not self._window and options.pooling is None

    @property
    def _window(self) -> int:
        return self._number("attention.sliding_window", _WINDOWS.get(str(self._architecture), 0))

    def _is_windowed(self, layer: int, options: EngineOptions) -> bool:
        """Whether a layer keeps only the last tokens of each sequence. False where that is not known."""
        if options.swa_full or not self._window:
            return False
        if self._header.arrays.get(f"{self._architecture}.attention.sliding_window_pattern"):
            return self._of_layer("attention.sliding_window_pattern", layer) == 1
        name = str(self._architecture)
        if name not in _PERIODS:
            return False
        period = self._number("attention.sliding_window_pattern", _PERIODS[name])
        return not period or layer % period != (0 if name in _WHOLE_FIRST else period - 1)

    def _widths(self, layer: int) -> tuple[int, int]:
        """The number of elements of a token's keys and values in a layer."""
        heads = self._of_layer("attention.head_count", layer)
        kv_heads = self._of_layer("attention.head_count_kv", layer, heads)
        usual = self.n_embd // heads if heads else 0
        # Sliding-window layers may have other head sizes.
        window = "_swa" if self._of_layer("attention.sliding_window_pattern", layer) == 1 else ""
        key = self._number(f"attention.key_length{window}") or self._number("attention.key_length", usual)
        value = self._number(f"attention.value_length{window}") or self._number("attention.value_length", usual)
        latent = self._number("attention.key_length_mla") and self._number("attention.value_length_mla")
        return key * kv_heads, 0 if latent else value * kv_heads

    def _state(self) -> int:
        """The number of elements of a sequence's state in a recurrent layer."""
        heads = self._of_layer("attention.head_count", 0)
        if wkv := self._number("wkv.head_size"):
            return self.n_embd * (self._number("token_shift_count", 2) + wkv)
        if convolved := self._number("shortconv.l_cache"):
            return self.n_embd * (convolved - 1)
        kernel = self._number("ssm.conv_kernel")
        if width := self._number("kda.head_dim"):
            return heads * width * (3 * (kernel - 1 if kernel else 3) + width)
        inner, state, groups = (self._number(f"ssm.{name}") for name in ("inner_size", "state_size", "group_count"))
        return max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner

    # ── compute buffers ───────────────────────────────────────────────────────────────────────────────────────────────

    def compute(self, context: _Context, options: EngineOptions) -> int:
        """The stages of a step reuse the same memory, so the largest counts."""
        heads = max((self._of_layer("attention.head_count", layer) for layer in range(self.n_layer)), default=0)
        width = heads * self._number("attention.key_length", self.n_embd // heads if heads else 0)
        fed = self._number("expert_feed_forward_length") * self._number("expert_used_count")
        fed = max(fed, *(self._of_layer("feed_forward_length", layer) for layer in range(self.n_layer)), 0)
        inner = self._number("ssm.inner_size")
        scores = 0
        if options.flash_attn == "off":
            scores = heads * context.per_sequence * context.rows * _FLOAT
        attention = self.masks(context, options) + scores + context.rows * (2 * self.n_embd + 4 * width) * _FLOAT
        logits = self.n_vocab if self.has_cache else 0  # also if no token is ever sampled
        return max(
            attention,
            context.rows * (2 * self.n_embd + 2 * fed) * _FLOAT,
            context.rows * (2 * self.n_embd + 5 * inner) * _FLOAT,
            context.rows * (2 * self.n_embd + logits) * _FLOAT,
        )

    def masks(self, context: _Context, options: EngineOptions) -> int:
        """The attention masks: one for each kind of attention layer."""
        if not self._of_layer("attention.head_count", 0):
            return 0
        cells = context.per_sequence
        if self._window:
            cells += context.per_sequence if options.swa_full else context.windowed(self._window)
        return cells * context.rows * (_FLOAT if options.flash_attn == "off" else _FLOAT // 2)

    # ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _number(self, key: str, default: int = 0) -> int:
        return _natural(self._header.metadata.get(f"{self._architecture}.{key}"), default)

    def _of_layer(self, key: str, layer: int, default: int = 0) -> int:
        """A value that some files give once and others per layer."""
        each = self._header.arrays.get(f"{self._architecture}.{key}", ())
        return _natural(each[layer], default) if layer < len(each) else self._number(key, default)


def _natural(value: Any, default: int) -> int:
    return int(value) if isinstance(value, int) and 0 <= value < 1 << 40 else default


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
