"""The engine over libllama: one model, one context, used by one thread."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import msgspec
import numpy as np
import numpy.typing as npt

from paddock.engine import library
from paddock.engine.adapters import LoadedAdapters
from paddock.engine.batch import Batch
from paddock.engine.context import clamped_context
from paddock.engine.draft import Drafter, draft_options, why_unfit
from paddock.engine.exact import PROBE_CONTEXT, rows_alike
from paddock.engine.fingerprint import ENGINE, fingerprint, origin
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.engine.memory import Memory
from paddock.engine.offloading import computes_on_cpu
from paddock.engine.sampler import PROFILE, Crowd, Sampler, logprobs_of
from paddock.engine.vocab import LlamaVocab
from paddock.engine.whole import WholeMemory
from paddock.errors import DecodeFailed, ModelLoadFailed, NoCells
from paddock.types import (
    Adapters,
    CacheShape,
    Constraint,
    EngineOptions,
    Forget,
    ModelInfo,
    Operation,
    Piece,
    Sampled,
    SamplingParams,
    Span,
    TokenLogprobs,
)

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_CACHE_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which the bindings leave out
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q4_1": lib.GGML_TYPE_Q4_1,
    "q4_0": lib.GGML_TYPE_Q4_0,
    "iq4_nl": lib.GGML_TYPE_IQ4_NL,
}
_WARM_UP_TOKENS = 8
# Bringing a prefix to where a GPU needs it takes a transfer for each layer, in which time it computes about this many.
_LEAST_TO_GPU = 64
# Reading all weights once more takes a GPU as long as computing about this many tokens along with others.
_WORTH_A_ROUND = 64
_MOST_TOGETHER = 8
# Copied out of shared cells between two steps: what a GPU does in about the time of a step. Sequences that nobody runs
# in hold what is still to be copied; they cost nothing but a name.
_BYTES_AT_ONCE = 16 << 20
_LEAST_AT_ONCE = 64
_SPARE = 4
# What `llama_decode` returns: no room, and nothing changed; a batch that is not valid.
_NO_CELLS, _BAD_BATCH = 1, -1


class LlamaEngine:
    """Implements `Engine`. Every batch is validated here, because libllama aborts the process on a bad one."""

    def __init__(self, path: Path, options: EngineOptions, on_progress: Callable[[float], None]) -> None:
        library.start(verbose=options.verbose)
        self._model = load_model(path, options, on_progress)
        self._adapters = LoadedAdapters(self._model, options.adapters)
        self._applied: Adapters = ()
        self.vocab = LlamaVocab(self._model, options.chat_template)
        self._grammars = GrammarSource(self.vocab, self.vocab.size)
        self._unified = options.kv_unified or options.parallel == 1
        trained = int(lib.llama_model_n_ctx_train(self._model))
        # Past its trained context a model only babbles: no request gets more, and no more is reserved than all can use.
        n_ctx = min(options.n_ctx or trained, trained * options.parallel)
        if clamped := clamped_context(options, trained, unified=self._unified):
            # Where nobody asked for a size it is no surprise.
            level = 6 if options.n_ctx == EngineOptions().n_ctx else 4
            sys.stderr.write(f"<{level}>{clamped}\n")
        n_batch = min(options.n_batch, n_ctx)
        params = context_params(options, n_ctx=n_ctx, n_batch=n_batch, unified=self._unified)
        room = int(params.n_ubatch) - int(params.n_seq_max)  # libllama reserves an output for each sequence
        spare = max(min(_SPARE, room), 0) if self._unified and not _is_special(self._model) else 0
        params.n_seq_max += spare
        self._context = new_context(self._model, params)
        self._n_ctx = int(lib.llama_n_ctx_seq(self._context))
        self._batch = Batch(n_batch)
        self._outputs = np.empty((0, 0), np.float32)
        self._outputs_at: int | None = None
        self._crowd = Crowd([])
        has_gpu = bool(lib.llama_supports_gpu_offload())
        on_gpu = options.n_gpu_layers != 0 and has_gpu
        self._on_gpu = on_gpu
        n_layers = int(lib.llama_model_n_layer(self._model))
        self.takes_turns = computes_on_cpu(options.n_gpu_layers, n_layers, has_gpu=has_gpu)
        self._pads = False
        self._drafter: Drafter | None = None
        self._can_undo = False
        self._memory = self._warm_up(on_gpu=on_gpu, scratch=params.n_seq_max - 1)
        self._can_undo = isinstance(self._memory, Memory)
        self._drafter = self._open_drafter(options, n_ctx, on_gpu=on_gpu) if options.model_draft else None
        self._pads = on_gpu and not self._unified and self._memory.reuse == "prefix"
        self.n_batch = n_batch - n_batch // 8 if self._pads else n_batch
        self.shape = CacheShape(
            cells=int(lib.llama_n_ctx(self._context)),
            unified=self._unified,
            bytes_per_token=self._memory.bytes_per_token,
            ram_bytes=options.cache_ram_bytes,
            reuse=self._memory.reuse,
            snapshot=self._memory.snapshot,
            exact=self._memory.exact,
            least_copied=_LEAST_TO_GPU if on_gpu else 1,
            most_copied=max(_BYTES_AT_ONCE // max(self._memory.bytes_per_token, 1), _LEAST_AT_ONCE),
            spare=spare,
            # Answers written side by side alternate in shared cells, and each such cell is a transfer for each layer.
            keeps_answers=not (on_gpu and self._unified and options.parallel > 1),
        )
        self.origin = origin(path, options, unified=self._unified, flash_attn=not self._memory.transposed)
        together = self._rows_alike(options) if options.deterministic else 1
        self.info = ModelInfo(
            description=description(self._model),
            n_ctx=min(self._n_ctx, trained),
            n_ctx_train=trained,
            n_vocab=self.vocab.size,
            n_params=int(lib.llama_model_n_params(self._model)),
            size_bytes=int(lib.llama_model_size(self._model)),
            n_slots=options.parallel,
            fingerprint=fingerprint(path, options, unified=self._unified, together=together),
            engine=ENGINE,
            llama_cpp_commit=library.commit(),
            sampler_profile=PROFILE,
            chat_template=self.vocab.chat_template or "",
            bos=self.vocab.bos,
            eos=self.vocab.eos,
            reuse=self._memory.reuse,
            n_cells=self.shape.cells,
            kv_unified=self._unified,
            bytes_per_token=self.shape.bytes_per_token,
            together=together,
            adapters=self.origin.adapters,
            drafts_for=0 if self._drafter is None else self._drafter.places,
        )

    def prepare_constraints(self) -> None:
        self._grammars.prepare()

    def compile(self, constraint: Constraint) -> Grammar:
        return self._grammars.compile(constraint)

    def sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Grammar | None = None) -> Sampler:
        return Sampler(
            params,
            prompt,
            end_tokens=self.vocab.end_tokens,
            breakers=self.vocab.tokens_with,
            grammar=None if grammar is None else grammar.fork(),
        )

    def apply(self, operations: Sequence[Operation]) -> None:
        self._memory.apply(operations)

    def decode(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> list[Sampled | None]:
        if adapters != self._applied:
            self._adapters.apply(self._context, adapters)
            self._applied = adapters
        if self._drafter is not None:
            self._draft(spans)
        if exact and self.info.together > 1:
            sizes = _never_alone(spans)
        elif self._pads:
            sizes = self._padded(spans)
        else:
            sizes = [len(span.tokens) + len(span.draft) for span in spans]
        self._batch.fill(spans, n_vocab=self.vocab.size, sizes=sizes)
        self._compute(spans)
        results = self._results(spans)
        for span, size, result in zip(spans, sizes, results, strict=True):
            kept = len(span.tokens) + (len(result.more) if result is not None else 0)
            if size > kept:
                self.apply([Forget(span.sequence, span.start + kept)])
        return results

    def _compute(self, spans: Sequence[Span]) -> None:
        """Run the batch. What libllama could not compute is tried once more, where the cache can be put back."""
        status = int(lib.llama_decode(self._context, self._batch.struct))
        if (status > _NO_CELLS or status < _BAD_BATCH) and self._can_undo:
            # The parts of the batch that came before the failure stay in the cache.
            self.apply([Forget(span.sequence, span.start) for span in spans])
            sys.stderr.write(f"<4>llama_decode failed with {status}: the step is tried again\n")
            status = int(lib.llama_decode(self._context, self._batch.struct))
        tokens = self._batch.struct.n_tokens
        if status == _NO_CELLS:
            raise NoCells(f"the cache has no room for a step of {tokens} tokens")
        if status != 0:
            raise DecodeFailed(f"llama_decode failed with {status} on a batch of {tokens} tokens")

    def _draft(self, spans: Sequence[Span]) -> None:
        """Have the draft model guess. Should it fail, the step goes on without guesses."""
        assert self._drafter is not None, "asked for where there is one"
        try:
            self._drafter.propose(spans)
        except DecodeFailed as error:
            sys.stderr.write(f"<4>{error.message}: a step without guesses\n")
            self._drafter.forget_all()
            for span in spans:
                span.draft = []

    def used_sequences(self) -> list[int]:
        memory, count = lib.llama_get_memory(self._context), int(lib.llama_n_seq_max(self._context))
        return [sequence for sequence in range(count) if int(lib.llama_memory_seq_pos_max(memory, sequence)) >= 0]

    def lend(self, pieces: Sequence[Piece]) -> Any:
        return self._divisible.lend(pieces)

    def pack(self, lent: Any) -> Iterator[memoryview]:
        return self._divisible.pack(lent)

    def unpack(self, data: memoryview, tokens: int) -> Any:
        return self._divisible.unpack(data, tokens)

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def _results(self, spans: Sequence[Span]) -> list[Sampled | None]:
        samplers = [span.sampler for span in spans if span.sampler is not None]
        if any(span.targets for span in spans):
            return self._choose_and_judge(spans, samplers)
        if any(span.draft for span in spans):
            return self._choose_along(spans)
        if not samplers:
            lib.llama_synchronize(self._context)
            return [None] * len(spans)
        chosen = iter(self._choose(self._logits(len(samplers)), samplers))
        return [None if span.sampler is None else next(chosen) for span in spans]

    def _choose(self, rows: npt.NDArray[np.float32], samplers: list[Sampler]) -> list[Sampled]:
        if samplers != self._crowd.samplers:
            self._crowd = Crowd(samplers)
        return self._crowd.choose(rows)

    def _choose_along(self, spans: Sequence[Span]) -> list[Sampled | None]:
        """The same where answers were guessed ahead: while a guess turns out right, the row after it counts too."""
        ends = list(accumulate(1 + len(span.draft) for span in spans))
        rows = self._logits(ends[-1])
        firsts = [0, *ends]
        chosen: list[list[Sampled]] = [[] for _ in spans]
        going = list(range(len(spans)))
        while going:
            at = [firsts[index] + len(chosen[index]) for index in going]
            for index, sampled in zip(going, self._choose(rows[at], [spans[i].sampler for i in going]), strict=True):
                chosen[index].append(sampled)
            going = [index for index in going if _goes_on(spans[index].draft, chosen[index])]
        return [
            msgspec.structs.replace(first, drafted=len(span.draft), more=more)
            for span, (first, *more) in zip(spans, chosen, strict=True)
        ]

    def _choose_and_judge(self, spans: Sequence[Span], samplers: list[Sampler]) -> list[Sampled | None]:
        """The same where the outputs also hold rows that tell how likely a prompt's own tokens were."""
        rows = self._logits(sum(len(span.targets) + (span.sampler is not None) for span in spans))
        judged: list[list[TokenLogprobs]] = []
        last: list[int] = []
        at = 0
        for span in spans:
            targets = zip(rows[at:], span.targets, strict=False)
            judged.append([logprobs_of(row, target, span.target_probs) for row, target in targets])
            at += len(span.targets)
            if span.sampler is not None:
                last.append(at)
                at += 1
        chosen = iter(self._choose(rows[last], samplers) if last else ())
        return [
            msgspec.structs.replace(next(chosen) if span.sampler is not None else Sampled(None), prompt=prompt)
            if span.sampler is not None or prompt
            else None
            for span, prompt in zip(spans, judged, strict=True)
        ]

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The outputs of the last step, in the order of the batch. libllama rarely moves them, so the view is kept."""
        address = ctypes.cast(lib.llama_get_logits(self._context), ctypes.c_void_p).value
        if address != self._outputs_at or rows > len(self._outputs):
            pointer = lib.llama_get_logits(self._context)
            self._outputs = np.ctypeslib.as_array(pointer, shape=(rows, self.vocab.size))
            self._outputs_at = address
        return self._outputs[:rows]

    @property
    def _divisible(self) -> Memory:
        assert isinstance(self._memory, Memory), "asked for where any prefix can be taken out"
        return self._memory

    def _rows_alike(self, options: EngineOptions) -> int:
        """How many deterministic answers may share a step: tried in a context of its own, like the real one. One on a
        GPU, where attention divides its work by the longest context of all, and no trial covers every length.
        """
        most = min(options.parallel, _MOST_TOGETHER)
        if self._unified or self._on_gpu or self._memory.reuse != "prefix":
            return 1
        options = msgspec.structs.replace(options, parallel=most)
        params = context_params(options, n_ctx=most * PROBE_CONTEXT, n_batch=64, unified=False)
        for adapters in {(), self._adapters.all}:
            context = new_context(self._model, params)
            try:
                self._adapters.apply(context, adapters)
                most = rows_alike(context, n_vocab=self.vocab.size, most=most)
            finally:
                lib.llama_free(context)
        return most

    def _padded(self, spans: Sequence[Span]) -> list[int]:
        """How many tokens to compute for each span. Streams are computed together as far as all of them go, then those
        that go on, and so forth; on a GPU a few tokens more, forgotten afterwards, cost less than one more such round.
        """
        sizes = [len(span.tokens) + len(span.draft) for span in spans]
        room = self._batch.capacity - sum(sizes)
        longest = max(sizes)
        for index in sorted(range(len(spans)), key=lambda index: -sizes[index]):
            size = sizes[index]
            more = longest - size
            if size == 1 or more > _WORTH_A_ROUND or spans[index].start + longest > self._n_ctx:
                longest = size
            elif 0 < more <= room:
                sizes[index] = longest
                room -= more
        return sizes

    def _open_drafter(self, options: EngineOptions, n_ctx: int, *, on_gpu: bool) -> Drafter | None:
        """The draft model, or None where it could be of no use, which is said. Raises `ModelLoadFailed` where it does
        not go with this one.
        """
        useless = ""
        if self._memory.reuse != "prefix":
            useless = "what was guessed wrong could not be forgotten: this model's memory has no parts"
        elif options.deterministic:
            useless = "deterministic answers must not depend on what is guessed"
        if useless:
            sys.stderr.write(f"the draft model is not used: {useless}\n")
            return None
        path = Path(options.model_draft)
        options = draft_options(options, on_gpu=on_gpu)
        model = load_model(path, options, lambda _: None)
        layers, has_gpu = int(lib.llama_model_n_layer(model)), bool(lib.llama_supports_gpu_offload())
        self.takes_turns |= computes_on_cpu(options.n_gpu_layers, layers, has_gpu=has_gpu)
        trained = int(lib.llama_model_n_ctx_train(model))
        unfit = why_unfit(self.vocab, LlamaVocab(model))
        if _is_special(model):
            unfit = "a part of its memory cannot be forgotten"
        if unfit:
            raise ModelLoadFailed(f"{path.name} cannot be the draft model: {unfit}")
        n_ctx = min(n_ctx, trained * options.parallel)
        params = context_params(options, n_ctx=n_ctx, n_batch=min(options.n_batch, n_ctx), unified=True)
        return Drafter(
            model,
            new_context(model, params),
            places=options.parallel,
            n_vocab=self.vocab.size,
            end_tokens=self.vocab.end_tokens,
        )

    def _warm_up(self, *, on_gpu: bool, scratch: int) -> Memory | WholeMemory:
        """A first small step: it touches every weight, those of adapters too, and what this build cannot do on this
        machine dies here, while loading, rather than in somebody's answer. Its cells also show how this model's state
        is written.
        """
        token = max(int(lib.llama_vocab_bos(lib.llama_model_get_vocab(self._model))), 0)
        count = min(_WARM_UP_TOKENS, self._batch.capacity)
        self.decode([Span(0, 0, [token] * count)], adapters=self._adapters.all)
        memory = Memory(self._context, unified=self._unified, on_gpu=on_gpu, scratch=scratch)
        if not _is_special(self._model):
            memory.learn(0, count)
        memory.apply([Forget(0)])
        if memory.bytes_per_token:
            return memory
        window = int(lib.llama_model_n_swa(self._model))
        whole = WholeMemory(self._context, unified=self._unified, window=window)
        whole.learn(0, lambda position: self.decode([Span(0, position, [token])]))
        whole.apply([Forget(0)])
        return whole


def _never_alone(spans: Sequence[Span]) -> list[int]:
    """How many tokens to compute for each span, so that no single one is computed by itself: `rows_alike` says why."""
    sequences = {span.sequence for span in spans}
    return [
        len(span.tokens) + (len(span.tokens) == 1 and not sequences & {span.sequence - 1, span.sequence + 1})
        for span in spans
    ]


def _goes_on(draft: list[int], chosen: list[Sampled]) -> bool:
    """Whether the newest of the chosen tokens was guessed, so that the row after it tells what follows."""
    newest, place = chosen[-1], len(chosen) - 1
    return place < len(draft) and newest.token == draft[place] and not newest.last


def _is_special(model: Any) -> bool:
    """Whether a sequence's state is more than its keys and values by position."""
    return bool(lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model) or lib.llama_model_n_swa(model))


def load_model(path: Path, options: EngineOptions, on_progress: Callable[[float], None]) -> Any:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.use_extra_bufts = options.repack

    def report(progress: float, _data: Any) -> bool:
        on_progress(progress)
        return True

    callback = lib.llama_progress_callback(report)
    params.progress_callback = callback
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise library.load_failure(f"cannot load {path.name}")
    return model


def context_params(options: EngineOptions, *, n_ctx: int, n_batch: int, unified: bool) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = n_batch
    params.n_ubatch = min(options.n_ubatch, n_batch)
    # With unified cells one more sequence costs nothing and serves as scratch space.
    params.n_seq_max = options.parallel + 1 if unified else options.parallel
    params.kv_unified = unified
    params.n_threads = params.n_threads_batch = options.n_threads
    params.flash_attn_type = _FLASH_ATTENTION[options.flash_attn]
    params.type_k = _CACHE_TYPES[options.cache_type_k]
    params.type_v = _CACHE_TYPES[options.cache_type_v]
    params.no_perf = True
    return params


def new_context(model: Any, params: Any) -> Any:
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise library.load_failure(f"cannot create a context of {params.n_ctx} tokens")
    return context


def description(model: Any) -> str:
    buffer = ctypes.create_string_buffer(256)
    lib.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")
