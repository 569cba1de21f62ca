"""Finds out how the memory of a model can be copied, and what the scheduler may do with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddock.engine.checkpoint_memory import CheckpointMemory
from paddock.engine.libllama import lib
from paddock.engine.loading import has_indivisible_state
from paddock.engine.prefix_memory import PrefixMemory
from paddock.engine.sequence_memory import SequenceMemory
from paddock.engine.snapshot_memory import SnapshotMemory
from paddock.types import CacheShape, EngineOptions, Forget

# A restore to a GPU takes one transfer per layer. In this time the GPU computes about this many tokens.
_LEAST_TO_GPU = 64
# Copied between two steps, out of and into unified cells: as much as a GPU copies in about the time of a step or two.
_BYTES_PER_SAVE, _BYTES_PER_RESTORE = 16 << 20, 64 << 20
_MIN_TOKENS_PER_COPY = 64
# The buffer for copies of unified cells: at most this part of host memory, and at most so many bytes. While host memory
# has no size yet, because the memory limit leaves none, it has a usual size. It always holds a few tokens.
_BUFFER_PART, _LARGEST_BUFFER, _USUAL_BUFFER, _LEAST_BUFFERED = 8, 32 << 20, 4 << 20, 16


def open_memory(
    model: Any,
    context: Any,
    decode: Callable[[int], None],
    *,
    computed: int,
    unified: bool,
    on_gpu: bool,
    scratch: int,
    may_sample: bool,
) -> SequenceMemory:
    """The memory that reuses most of what this model has computed. Sequence 0 has so many `computed` tokens, whose
    state shows the format; `decode` adds one at a position. In the end it is empty. `may_sample`: a sampler may be
    attached to the context for a moment.
    """
    memory = PrefixMemory(context, unified=unified, on_gpu=on_gpu, scratch=scratch)
    is_indivisible = has_indivisible_state(model)
    if not is_indivisible:
        memory.learn(0, computed)
    if not is_indivisible and may_sample:
        memory.find_rows(0, computed, lambda: decode(computed), layers=int(lib.llama_model_n_layer(model)))
    memory.apply([Forget(0)])
    if memory.bytes_per_token:
        return memory
    window = int(lib.llama_model_n_swa(model))
    if is_indivisible:
        checkpoints = CheckpointMemory(context, unified=unified, on_gpu=on_gpu, window=window, scratch=scratch)
        checkpoints.probe(0, decode)
        checkpoints.apply([Forget(0)])
        if checkpoints.reuse != "none":
            return checkpoints
    snapshots = SnapshotMemory(context, unified=unified, window=window)
    snapshots.learn(0, decode)
    snapshots.apply([Forget(0)])
    return snapshots


def cache_shape(
    memory: SequenceMemory,
    options: EngineOptions,
    *,
    cells: int,
    unified: bool,
    on_gpu: bool,
    max_rolled_back: int,
    delimiters: frozenset[int],
    idle_cells: tuple[int, float],
    spare_sequences: int,
) -> CacheShape:
    """What the scheduler knows of the cache. `idle_cells`: how many finished sequences may keep while requests run, and
    what each more costs in a step.
    """

    def tokens_in(size: int) -> int:
        return max(size // max(memory.bytes_per_token, 1), _MIN_TOKENS_PER_COPY)

    buffer = min(options.cache_ram_bytes // _BUFFER_PART, _LARGEST_BUFFER) or _USUAL_BUFFER
    return CacheShape(
        cells=cells,
        unified=unified,
        bytes_per_token=memory.bytes_per_token,
        ram_bytes=options.cache_ram_bytes,
        reuse=memory.reuse,
        max_rolled_back=max_rolled_back,
        snapshot=memory.snapshot,
        checkpoints=options.ctx_checkpoints,
        delimiters=delimiters,
        has_exact_copies=memory.has_exact_copies,
        min_copied=_LEAST_TO_GPU if on_gpu else 1,
        max_copied=tokens_in(_BYTES_PER_SAVE),
        max_restored=tokens_in(_BYTES_PER_RESTORE),
        forks_on_device=on_gpu and not unified and memory.reuse == "prefix",
        idle_cells=idle_cells[0],
        idle_cell_seconds=idle_cells[1],
        spare_sequences=spare_sequences,
        state_bytes=memory.state_bytes,
        part_tokens=max(buffer // max(memory.state_bytes[1], 1), _LEAST_BUFFERED),
        saves_stream_parts=memory.saves_stream_parts,
        stages_parts=on_gpu,
        # Concurrent answers alternate in unified cells, and each cell is one transfer per layer.
        saves_answers=not (on_gpu and unified and options.parallel > 1),
    )
