"""The engine on libllama: one model and one context, used by one thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine import library
from paddock.engine.batch import Batch, padded_sizes, paired_sizes
from paddock.engine.checkpoint_memory import CheckpointMemory
from paddock.engine.device_selection import DeviceSelection, wants_selection
from paddock.engine.devices import has_gpu_device
from paddock.engine.draft import Drafter
from paddock.engine.empty_pages import added, anonymous_ranges, release
from paddock.engine.exact_batch import probe_exact_batch
from paddock.engine.fingerprint import decisive_options, fingerprint, origin, stamps
from paddock.engine.forced_tokens import cut_drafts, draft_by_grammar
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.engine.idle_cells import affordable_idle_cells
from paddock.engine.libllama import lib
from paddock.engine.loading import (
    LoadedAdapters,
    computes_on_cpu,
    context_params,
    has_indivisible_state,
    load_model,
    model_info,
    new_context,
    original_context,
    unusual_context,
)
from paddock.engine.open_memory import cache_shape, open_memory
from paddock.engine.outputs import Outputs
from paddock.engine.placement import optimise_for_numa
from paddock.engine.pooled import PooledContext
from paddock.engine.prefix_memory import PrefixMemory
from paddock.engine.projector import Projector
from paddock.engine.rollback import even_out, probe_rollback, wanted_states
from paddock.engine.sampler import PROFILE, Sampler
from paddock.engine.sequence_memory import SequenceMemory
from paddock.engine.token_positions import TokenPositions
from paddock.engine.vocab import LlamaVocab
from paddock.engine.window_drafts import check_window, has_removable_drafts, shorten_drafts
from paddock.errors import DecodeFailed, NoCells
from paddock.types import (
    EMBEDDING_POOLING,
    Adapters,
    Copied,
    EngineOptions,
    Forget,
    Operation,
    Piece,
    Sampled,
    SamplingParams,
    Span,
)

_WARM_UP_TOKENS = 8
# Sequence ids for finished sequences that keep their cells. Each costs a row of logits.
_SPARE = 4
# Results of `llama_decode`: no room and nothing changed; an invalid batch.
_NO_CELLS, _BAD_BATCH = 1, -1


class LlamaEngine:
    """Implements `Engine`. Every batch is validated here, because libllama aborts the process on a bad one."""

    def __init__(self, path: Path, options: EngineOptions, on_progress: Callable[[float], None]) -> None:
        library.start(verbose=options.verbose)
        optimise_for_numa(options)
        self._path, self._options = path, options
        files = stamps(path)
        adapter_files = tuple(stamp for adapter in options.adapters for stamp in stamps(Path(adapter)))
        self._model = load_model(path, options, on_progress)
        self._adapters = LoadedAdapters(self._model, options.adapters)
        self._applied: Adapters = ()
        self._projector: Projector | None = None
        self._positions = TokenPositions()
        self.vocab = LlamaVocab(self._model, options.chat_template)
        self.grammars = GrammarSource(self.vocab, self.vocab.size)
        self._unified = options.kv_unified or options.parallel == 1
        trained = int(lib.llama_model_n_ctx_train(self._model))
        longest = options.longest_context(trained)
        # A model is useless past its longest context: no request gets more, and no more is reserved than all can use.
        n_ctx = min(options.n_ctx or longest, longest * options.parallel)
        line, is_clamped = unusual_context(options, trained, unified=self._unified)
        if line:
            # With the default size this is information, not a warning.
            level = 4 if is_clamped and not options.is_default_ctx else 6
            sys.stderr.write(f"<{level}>{line}\n")
        n_batch = min(options.n_batch, n_ctx)
        params = context_params(options, n_ctx=n_ctx, n_batch=n_batch, unified=self._unified)
        room = int(params.n_ubatch) - int(params.n_seq_max)  # libllama reserves one output per sequence
        spare = max(min(_SPARE, room), 0) if self._unified and not has_indivisible_state(self._model) else 0
        params.n_seq_max += spare
        params.n_rs_seq = wanted_states(self._model, options, int(params.n_ubatch))
        selects = wants_selection(options, is_on_gpu=not computes_on_cpu(self._model, options.n_gpu_layers))
        if selects:
            params.n_outputs_max_per_seq = n_batch  # the default allows no drafts beside samplers
        before = anonymous_ranges()
        self._context = new_context(self._model, params, options)
        memory_of_context = added(before, anonymous_ranges())
        self._n_ctx = int(lib.llama_n_ctx_seq(self._context))
        self._batch = Batch(n_batch)
        self._outputs = Outputs(self._context, self.vocab.size)
        self._selection: DeviceSelection | None = None
        self._submitted: tuple[Sequence[Span], Sequence[int]] = (), ()
        """The spans of the step, and how many tokens are computed for each."""
        self._on_gpu = on_gpu = options.n_gpu_layers != 0 and has_gpu_device()
        self.is_cpu_bound = computes_on_cpu(self._model, options.n_gpu_layers)
        self._pads = False
        self._drafter: Drafter | None = None
        self._can_undo = False
        self._window = 0
        self._max_rolled_back = 0
        self._n_ubatch = int(params.n_ubatch)
        self._after_decode: Callable[[], None] = lambda: None  # until the memory is known
        self._memory = self._warm_up(
            on_gpu=on_gpu,
            scratch=params.n_seq_max - 1,
            # On a GPU a graph with a sampler takes more memory, which is there if the device selects tokens.
            may_sample=selects or not on_gpu,
        )
        self._after_decode = self._memory.after_decode
        self._positions = self._memory.positions
        self._can_undo = self._memory.reuse == "prefix"
        if options.mmproj:
            self._projector = Projector.open(
                self._model,
                options,
                n_ubatch=self._n_ubatch,
                n_batch=n_batch,
                shares_grids=self._memory.keeps_images,
            )
        self.media = self._projector
        if self._memory.reuse == "checkpoint" and has_removable_drafts(self._model):
            self._window = int(lib.llama_model_n_swa(self._model))
        self._max_rolled_back = self._probe_rollback()
        self._drafter = self._open_drafter(n_ctx) if options.model_draft else None
        self._pads = on_gpu and not self._unified and self._memory.reuse == "prefix"
        self.n_batch = n_batch - n_batch // 8 if self._pads else n_batch
        self.shape = cache_shape(
            self._memory,
            options,
            cells=int(lib.llama_n_ctx(self._context)),
            unified=self._unified,
            on_gpu=on_gpu,
            max_rolled_back=sys.maxsize if self._window else self._max_rolled_back,
            delimiters=self.vocab.control_tokens if self._memory.reuse == "checkpoint" else frozenset(),
            idle_cells=self._probe_idle_cells(spare),
            spare_sequences=spare,
        )
        self.origin = origin(
            path,
            options,
            unified=self._unified,
            flash_attn=not self._memory.transposed,
            beyond_original=self._n_ctx > original_context(self._model),
            has_positions=self._memory.format_name.endswith("positions"),
        )
        exact_batch = self._probe_exact_batch() if options.deterministic else 1
        self.info = model_info(
            self._model,
            self.vocab,
            n_ctx=min(self._n_ctx, longest),
            n_ctx_train=trained,
            n_slots=options.parallel,
            fingerprint=fingerprint(path, options, unified=self._unified, exact_batch=exact_batch),
            sampler_profile=PROFILE,
            files=files,
            adapter_files=adapter_files,
            decisive=decisive_options(
                options,
                n_ctx=min(self._n_ctx, longest),
                unified=self._unified,
                flash_attn=not self._memory.transposed,
                exact_batch=exact_batch,
            ),
            chat_template=self.vocab.chat_template or "",
            reuse=self._memory.reuse,
            state_format=None if self._memory.reuse == "none" else self._memory.format_name,
            n_cells=self.shape.cells,
            kv_unified=self._unified,
            bytes_per_token=self.shape.bytes_per_token,
            exact_batch=exact_batch,
            adapters=self.origin.adapters,
            draft_slots=0 if self._drafter is None else self._drafter.slots,
            media=() if self._projector is None else self._projector.kinds,
        )
        if selects and self._can_undo:
            self._selection = self._open_selection(int(params.n_seq_max))
        if not has_gpu_device():  # a GPU's driver may have pinned host memory, which must stay where it is
            lib.llama_memory_clear(lib.llama_get_memory(self._context), True)  # probes have left data in some cells
            release(memory_of_context)

    def sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Grammar | None = None) -> Sampler:
        return Sampler(
            params,
            [token for token in prompt if token >= 0],  # without the tokens of images
            end_tokens=self.vocab.end_tokens,
            breakers=self.vocab.tokens_with,
            tokenize=lambda text: self.vocab.tokenize(text, add_special=False, parse_special=False),
            grammar=None if grammar is None else grammar.fork(),
        )

    def apply(self, operations: Sequence[Operation]) -> Sequence[Copied]:
        return self._memory.apply(operations)

    def decode(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> list[Sampled | None]:
        self.submit(spans, exact=exact, adapters=adapters)
        return self.collect()

    def submit(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> None:
        if adapters != self._applied:
            self._adapters.apply(self._context, adapters)
            self._applied = adapters
        if spans[0].media is not None:
            self._submit_media(spans)
            return
        draft_by_grammar(spans)
        if self._drafter is not None:
            self._draft(spans)
        cut_drafts(spans)
        if self._window:
            shorten_drafts(spans, n_ubatch=self._n_ubatch, unified=self._unified)
        elif self._max_rolled_back:
            even_out(spans, n_ubatch=self._n_ubatch, n_ctx=self._n_ctx, unified=self._unified)
        if exact and self.info.exact_batch > 1:
            sizes = paired_sizes(spans)
        elif self._pads:
            sizes = padded_sizes(spans, capacity=self._batch.capacity, n_ctx=self._n_ctx)
        else:
            sizes = [len(span.tokens) + len(span.draft) + span.padding for span in spans]
        self._batch.fill(spans, n_vocab=self.vocab.size, sizes=sizes, shifts=self._positions.shifts)
        if self._selection is not None:
            is_selectable = all(span.sampler is None or span.sampler.is_selectable for span in spans)
            self._selection.prepare(spans, sizes, select=is_selectable and not exact)
        self._compute(spans)
        self._submitted = spans, sizes

    def collect(self) -> list[Sampled | None]:
        spans, sizes = self._submitted
        results = self._sample_selected(spans) or self._outputs.sample(spans)
        for span, size, result in zip(spans, sizes, results, strict=True):
            kept = len(span.tokens) + (len(result.more) if result is not None else 0)
            if size > kept:
                self._remove_drafts(span.sequence, span.start + kept)
        return results

    def _remove_drafts(self, sequence: int, start: int) -> None:
        if self._max_rolled_back:
            assert isinstance(self._memory, CheckpointMemory), "as the probe found"
            self._memory.roll_back(sequence, start)
            return
        self.apply([Forget(sequence, start)])
        if self._window:
            end = self._positions.position(sequence, start)
            check_window(lib.llama_get_memory(self._context), sequence, end, self._window)

    def _sample_selected(self, spans: Sequence[Span]) -> list[Sampled | None] | None:
        """None: the step has whole rows, if need be after it was repeated."""
        if self._selection is None or not self._selection.is_selected:
            return None
        selected = self._selection.selected()
        results = None if selected is None else self._outputs.sample_selected(spans, selected)
        if results is not None:
            self._selection.pause.succeed()
            return results
        self._selection.pause.fail()
        self._repeat_copied(spans)
        return None

    def _copied_rows(self) -> npt.NDArray[np.float32]:
        assert self._selection is not None, "it has attached samplers"
        if (rows := self._selection.copied()) is None:
            self._repeat_copied(self._submitted[0])
            rows = self._selection.copied()
        if rows is None:
            raise DecodeFailed("libllama did not copy the logits of the step")
        return rows

    def _repeat_copied(self, spans: Sequence[Span]) -> None:
        """Repeat the step, with all logits copied to the host."""
        assert self._selection is not None, "it has attached samplers"
        self.apply([Forget(span.sequence, span.start) for span in spans])
        self._selection.prepare_copies()
        self._compute(spans)

    def _compute(self, spans: Sequence[Span]) -> None:
        """Run the batch, or start it on a GPU. A failed step is tried once more if the cache can be restored."""
        status = int(lib.llama_decode(self._context, self._batch.struct))
        self._after_decode()
        if (status > _NO_CELLS or status < _BAD_BATCH) and self._can_undo:
            # The parts of the batch before the failure are in the cache.
            self.apply([Forget(span.sequence, span.start) for span in spans])
            sys.stderr.write(f"<4>llama_decode failed with {status}: repeating the step\n")
            status = int(lib.llama_decode(self._context, self._batch.struct))
        tokens = self._batch.struct.n_tokens
        if status == _NO_CELLS:
            raise NoCells(f"the cache has no room for a step of {tokens} tokens")
        if status != 0:
            raise DecodeFailed(f"llama_decode failed with {status} on a batch of {tokens} tokens")

    def _submit_media(self, spans: Sequence[Span]) -> None:
        """A step of one image, or of a part of one."""
        (span,), projector = spans, self._projector
        assert projector is not None, "its tokens were made by the projector"
        assert span.media is not None, "the caller checked"
        first, last = span.start - span.media.start, span.start - span.media.start + len(span.tokens)
        embeddings = projector.encode(span.media.chunk)[first:last]
        start = self._positions.position(span.sequence, span.start)
        if projector.uses_grid_positions:
            positions = projector.grid_positions(span.media.chunk, start)
        else:
            positions = np.arange(start, start + len(embeddings), dtype=np.int32)[None]
        if self._selection is not None:
            self._selection.prepare(spans, [len(embeddings)], select=False)
        if span.media.attends_both_ways:
            projector.set_whole(self._context, is_whole=True)
        try:
            status = self._batch.decode_embeddings(self._context, span.sequence, positions, embeddings)
            self._after_decode()
        finally:
            if span.media.attends_both_ways:
                projector.set_whole(self._context, is_whole=False)
        if status == _NO_CELLS:
            raise NoCells(f"the cache has no room for an image of {len(embeddings)} tokens")
        if status != 0:
            raise DecodeFailed(f"llama_decode failed with {status} on an image of {len(embeddings)} tokens")
        if projector.uses_grid_positions and (positions[0] == start).all():
            end = span.start + len(embeddings)
            self._positions.add(span.sequence, span.start, end, projector.n_positions(span.media.chunk))
        self._submitted = spans, [len(span.tokens)]

    def _draft(self, spans: Sequence[Span]) -> None:
        """Draft tokens where the scheduler has none. If the draft model fails, the step continues without them."""
        assert self._drafter is not None, "the caller checked"
        wanted = [span for span in spans if not span.draft and span.drafting is not None and span.drafting.params.n_max]
        try:
            self._drafter.propose(wanted)
        except DecodeFailed as error:
            sys.stderr.write(f"<4>the draft model failed, so the step has no drafts: {error.message}\n")
            self._drafter.clear()
            for span in wanted:
                span.draft = []
        for span in wanted:
            span.draft_source = "model" if span.draft else None

    def used_sequences(self) -> list[int]:
        memory, count = lib.llama_get_memory(self._context), int(lib.llama_n_seq_max(self._context))
        return [sequence for sequence in range(count) if int(lib.llama_memory_seq_pos_max(memory, sequence)) >= 0]

    def view_pieces(self, pieces: Sequence[Piece]) -> Any:
        return self._memory.view_pieces(pieces)

    def pack(self, views: Any) -> Iterator[memoryview]:
        return self._memory.pack(views)

    def packed_size(self, views: Any) -> int:
        return self._memory.packed_size(views)

    def unpack(self, data: memoryview, tokens: int) -> Any:
        return self._memory.unpack(data, tokens)

    def embeddings(self) -> PooledContext:
        options = msgspec.structs.replace(self._options, pooling=EMBEDDING_POOLING)
        return PooledContext(self._model, self.vocab, self._path, options)

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()
        if self._selection is not None:
            self._selection.close()
        if self._projector is not None:
            self._projector.close()
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def _probe_idle_cells(self, spare: int) -> tuple[int, float]:
        """How many unified cells finished sequences may keep while requests run, and what each more costs in a step."""
        if not isinstance(self._memory, PrefixMemory) or not self._unified:
            return 0, 0.0
        if not spare and self._memory.reuse == "prefix":
            return 0, 0.0
        if not self._memory.has_keys:
            return int(lib.llama_n_ctx(self._context)), 0.0  # its cells are not read

        def decode(span: Span) -> None:
            self.decode([span])
            lib.llama_synchronize(self._context)

        return affordable_idle_cells(self._memory, decode, n_ctx=int(lib.llama_n_ctx(self._context)))

    def _probe_rollback(self) -> int:
        """How many of the newest tokens can be removed from a recurrent state."""
        if not isinstance(self._memory, CheckpointMemory) or self._memory.reuse != "checkpoint":
            return 0

        def compute(span: Span) -> None:
            self._batch.fill([span], n_vocab=self.vocab.size)
            self._compute([span])

        return probe_rollback(self._context, self._memory, compute, n_vocab=self.vocab.size)

    def _probe_exact_batch(self) -> int:
        """How many deterministic answers may share a step. 1 on a GPU: its attention splits the work by the longest
        context, and no probe covers every length.
        """
        if self._unified or self._on_gpu or self._memory.reuse != "prefix":
            return 1
        return probe_exact_batch(self._model, self._options, self._adapters, n_vocab=self.vocab.size)

    def _open_selection(self, sequences: int) -> DeviceSelection | None:
        token = max(int(lib.llama_vocab_bos(lib.llama_model_get_vocab(self._model))), 0)

        def compute(span: Span) -> None:
            self._batch.fill([span], n_vocab=self.vocab.size)
            self.apply([Forget(0)])
            self._compute([span])

        selection = DeviceSelection.open(
            self._context,
            Span(0, 0, [token], sampler=True),
            compute,
            n_vocab=self.vocab.size,
            sequences=sequences,
            n_ubatch=self._n_ubatch,
            unified=self._unified,
        )
        self.apply([Forget(0)])
        if selection is not None:
            self._outputs.copied = self._copied_rows
        return selection

    def _open_drafter(self, n_ctx: int) -> Drafter | None:
        """None, with a line in the log: the draft model cannot be used."""
        useless = ""
        if self._memory.reuse != "prefix" and not self._window and not self._max_rolled_back:
            useless = "this model's memory cannot be cut and has no earlier states, so wrong drafts cannot be removed"
        elif self._options.deterministic:
            useless = "deterministic answers must not depend on drafts"
        if useless:
            sys.stderr.write(f"the draft model is not used: {useless}\n")
            return None
        drafter = Drafter.open(self._options, self.vocab, n_ctx=n_ctx, on_gpu=self._on_gpu)
        self.is_cpu_bound |= drafter.is_cpu_bound
        return drafter

    def _warm_up(self, *, on_gpu: bool, scratch: int, may_sample: bool) -> SequenceMemory:
        """Run a first small step. It touches every weight, also of adapters, so a build that does not work on this
        machine dies while loading and not during a request. Its cells are the probe for the format of the state.
        """
        token = max(int(lib.llama_vocab_bos(lib.llama_model_get_vocab(self._model))), 0)
        count = min(_WARM_UP_TOKENS, self._batch.capacity)
        self.decode([Span(0, 0, [token] * count)], adapters=self._adapters.all)

        def decode(position: int) -> None:
            self.decode([Span(0, position, [token])])

        return open_memory(
            self._model,
            self._context,
            decode,
            computed=count,
            unified=self._unified,
            on_gpu=on_gpu,
            scratch=scratch,
            may_sample=may_sample,
        )
