"""An engine without weights, for tests and for trying the server: `paddock serve -m fake:`.

It keeps the tokens of each sequence as a real engine keeps keys and values, and computes answers from them. So a
scheduler that loses or mixes up cells produces different text.

The last message of the conversation decides the answer:
- `say: WORDS` is answered with WORDS, byte for byte.
- `crash: …` aborts the process in the middle of the answer, as a native assertion does.
- `raise: …` raises an exception while a token is sampled. `break: …` raises one that fails the whole step.
- `hang: …` never returns, if the option `hang=1` is set.
- Any other message gets words drawn from a hash of the conversation and the seed.

Text without chat markers continues with hashed letters. A grammar replaces each forbidden token of the answer by the
simplest allowed one. Adapters change the hash.

Options follow the colon, as in `fake:delay=0.05,n_ctx=512`:
- `delay`: seconds per step, and as many for each token guessed from earlier text, so that guesses save no time.
  `load`: seconds to load. `memory`: MiB to hold. `n_ctx`: the context size.
- `draft`: speculate, with every so many-th token wrong. `short`: have this many cells fewer than reported.
- `whole=1`: the memory can only be copied as a whole, and an operation on a part fails.
- `checkpoint=1`: a sequence can be cut only where there is a checkpoint.
- `alone=1`: fail to load with out of memory while the gateway has another worker.
- `sigill=1`: die of SIGILL while loading, unless repacking is off. `hang=1`: allow `hang:`.

The engine fails if a sequence continues under other adapters than it was started with.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from paddock.engine import fake_cells
from paddock.engine.fake_cells import BYTES_PER_TOKEN, Cell
from paddock.engine.fake_checkpoints import FakeStates
from paddock.engine.fake_text import FakeSampler, StepFailed, fake_logprobs, next_token
from paddock.engine.fake_vocab import N_VOCAB, FakeVocab
from paddock.engine.forced_tokens import cut_drafts, draft_by_grammar
from paddock.engine.grammar import Grammar, GrammarSource
from paddock.engine.sampling_errors import sampling_failed
from paddock.errors import ModelLoadFailed, NoCells, OutOfMemory
from paddock.types import (
    EMBEDDING_POOLING,
    Adapters,
    Adopt,
    AdoptCheckpoint,
    CacheShape,
    Copied,
    CopyCheckpoint,
    Drop,
    EngineOptions,
    Forget,
    Fork,
    LoadCheckpoint,
    ModelInfo,
    Operation,
    Piece,
    Reserve,
    Restore,
    Sampled,
    SamplingParams,
    Save,
    SaveCheckpoint,
    SnapshotSize,
    Span,
    StateOrigin,
)

if TYPE_CHECKING:
    from paddock.engine.fake_pooled import FakePooledEngine

SCHEME = "fake:"
_OPTIONS = (
    "alone",
    "buffer",
    "checkpoint",
    "delay",
    "draft",
    "hang",
    "load",
    "memory",
    "n_ctx",
    "parts",
    "short",
    "sigill",
    "whole",
)
_N_CTX = 8192
_MAX_COPIED = 16
_MAX_RESTORED = 48
_STATE_BYTES = (100, BYTES_PER_TOKEN + 12)
_SPARE_SEQUENCES = 3
_BYTES_PER_SNAPSHOT = 4096
_EXACT_BATCH = 3
_DRAFT_SLOTS = 3


class FakeEngine:
    """Implements `Engine`."""

    def __init__(self, path: str, options: EngineOptions, on_progress: Callable[[float], None]) -> None:
        settings = parse(path)
        self._path, self._options = path, options
        if settings.get("sigill") and options.repack:
            os.kill(os.getpid(), signal.SIGILL)
        if settings.get("alone") and (others := _other_workers()):
            raise OutOfMemory(f"fake:alone=1 refuses to load beside {len(others)} other workers")
        time.sleep(settings.get("load", 0.0))
        self._ballast = b"x" * (int(settings.get("memory", 0)) << 20)
        on_progress(1.0)
        self.vocab = FakeVocab(options.chat_template)
        self.grammars = GrammarSource(self.vocab, N_VOCAB)
        self.is_cpu_bound = False
        self.media = None
        self.n_batch = options.n_batch
        self._delay = settings.get("delay", 0.0)
        self._hangs = bool(settings.get("hang"))
        self._whole = bool(settings.get("whole"))
        self._states = FakeStates() if settings.get("checkpoint") else None
        self._short = int(settings.get("short", 0))
        self._draft = int(settings.get("draft", 0))
        self._cells: dict[int, list[Cell]] = {}
        self._submitted: Sequence[Span] = ()
        self._adapters: Adapters = ()
        self._done_at = 0.0
        """When the submitted step is done: like a GPU, it computes while the caller does other things."""
        self._spans: dict[int, list[Cell]] = {}
        self._buffer = 0
        n_ctx = int(settings.get("n_ctx", min(options.n_ctx, _N_CTX)))
        unified = options.kv_unified
        self.shape = CacheShape(
            cells=n_ctx if unified else n_ctx * options.parallel,
            unified=unified,
            bytes_per_token=BYTES_PER_TOKEN,
            ram_bytes=options.cache_ram_bytes,
            reuse="snapshot" if self._whole else "prefix" if self._states is None else "checkpoint",
            snapshot=SnapshotSize(fixed=_BYTES_PER_SNAPSHOT, per_token=BYTES_PER_TOKEN if self._states is None else 0),
            max_copied=_MAX_COPIED,
            max_restored=_MAX_RESTORED,
            forks_on_device=options.n_gpu_layers != 0 and self._states is None,
            idle_cells=n_ctx // 4,
            spare_sequences=_SPARE_SEQUENCES if unified else 0,
            state_bytes=_STATE_BYTES if settings.get("buffer") else (0, 0),
            part_tokens=_MAX_COPIED,
            saves_stream_parts=bool(settings.get("parts")) and not unified,
        )
        self.info = fake_info(
            n_ctx=n_ctx,
            n_ctx_train=_N_CTX,
            n_slots=options.parallel,
            reuse=self.shape.reuse,
            state_format="whole" if self._whole else "keys_values",
            chat_template=options.chat_template,
            n_cells=self.shape.cells,
            kv_unified=unified,
            bytes_per_token=BYTES_PER_TOKEN,
            exact_batch=1 if unified or self.shape.reuse != "prefix" else _EXACT_BATCH,
            adapters=options.adapters,
            draft_slots=_DRAFT_SLOTS if self._draft and self.shape.reuse == "prefix" else 0,
        )
        self.origin = StateOrigin(
            engine="fake",
            model="fake",
            cache_type_k=options.cache_type_k,
            cache_type_v=options.cache_type_v,
            flash_attn=options.flash_attn == "on",
            arithmetic=f"kv_unified {unified}",
            adapters=options.adapters,
        )

    def embeddings(self) -> FakePooledEngine:
        from paddock.engine.fake_pooled import FakePooledEngine

        return FakePooledEngine(self._path, msgspec.structs.replace(self._options, pooling=EMBEDDING_POOLING))

    def sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Grammar | None = None) -> FakeSampler:
        return FakeSampler(params, None if grammar is None else grammar.fork(), may_hang=self._hangs)

    def apply(self, operations: Sequence[Operation]) -> Sequence[Copied]:
        for operation in operations:
            if self._whole:
                self._refuse_parts(operation)
            match operation:
                case SaveCheckpoint() | LoadCheckpoint() | CopyCheckpoint() | AdoptCheckpoint():
                    self._apply_checkpoint(operation)
                case Forget(sequence, start):
                    del self._cells.setdefault(sequence, [])[start:]
                    if self._states is not None:
                        self._states.cut(sequence, start)
                case Fork(source, target, length, start):
                    if self._states is not None:
                        self._states.lose(target)
                    cells = self._held(source, start, length)
                    history = self._history(target, start)
                    history += cells if self.shape.unified else map(copy, cells)
                case Save(sequence, start, end, span):
                    self._spans[span] = list(map(copy, self._held(sequence, start, end)))
                case Restore(sequence, start, pieces):
                    if self._states is not None:
                        self._states.lose(sequence)
                    history = self._history(sequence, start)
                    history += map(copy, self.view_pieces(pieces))
                case Adopt(state, start, end, span):
                    self._spans[span] = state[start:end]
                case Drop(span) if self._states is not None and span in self._states:
                    self._states.drop(span)
                case Drop(span):
                    del self._spans[span]
                case Reserve(size):
                    self._buffer = size
        self._check_room()
        return ()

    def _apply_checkpoint(self, operation: Operation) -> None:
        assert self._states is not None, "the model has no checkpoints"
        match operation:
            case SaveCheckpoint(sequence, length, checkpoint):
                self._states.save(sequence, self._tokens(sequence), length, checkpoint)
            case LoadCheckpoint(sequence, length, checkpoint):
                self._states.load(sequence, self._tokens(sequence), length, checkpoint)
            case CopyCheckpoint(source, target, length):
                self._states.copy(source, target, self._tokens(target), length)
            case AdoptCheckpoint(state, checkpoint):
                self._states.adopt([cell.token for cell in state], checkpoint)

    def decode(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> list[Sampled | None]:
        self.submit(spans, exact=exact, adapters=adapters)
        return self.collect()

    def submit(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> None:
        guessed = sum(len(span.draft) for span in spans)
        needed = self.used_cells + sum(len(span.tokens) for span in spans)
        if needed > self.shape.cells - self._short:
            raise NoCells(f"the step needs {needed} cells, but there are {self.shape.cells - self._short}")
        for span in spans:
            self._append(span, adapters)
        self._submitted, self._adapters = spans, adapters
        self._done_at = time.monotonic() + self._delay * (1 + guessed)

    def collect(self) -> list[Sampled | None]:
        if self._delay:
            time.sleep(max(self._done_at - time.monotonic(), 0.0))
        return [self._sample(span, self._adapters) for span in self._submitted]

    def used_sequences(self) -> list[int]:
        return [sequence for sequence, cells in self._cells.items() if cells]

    def view_pieces(self, pieces: Sequence[Piece]) -> list[Cell]:
        cells: list[Cell] = []
        for piece in pieces:
            if self._states is not None and piece.span in self._states:
                self._states.check(piece.span, [cell.token for cell in cells])
            else:
                cells += self._spans[piece.span][piece.offset : piece.offset + piece.length]
        return cells

    def pack(self, views: list[Cell]) -> Iterator[bytes]:
        return fake_cells.pack(views)

    def packed_size(self, views: list[Cell]) -> int:
        return len(views) * BYTES_PER_TOKEN

    def unpack(self, data: memoryview, tokens: int) -> list[Cell]:
        return fake_cells.unpack(data, tokens)

    def close(self) -> None:
        self._cells.clear()

    @property
    def used_cells(self) -> int:
        return len({id(cell) for cells in self._cells.values() for cell in cells})

    @property
    def held_bytes(self) -> int:
        return (self.stored_tokens + self._buffer) * BYTES_PER_TOKEN + self.checkpoints * _BYTES_PER_SNAPSHOT

    @property
    def checkpoints(self) -> int:
        return 0 if self._states is None else self._states.count

    @property
    def stored_tokens(self) -> int:
        return sum(map(len, self._spans.values()))

    def _refuse_parts(self, operation: Operation) -> None:
        """A real engine would silently continue with a wrong state."""
        match operation:
            case Forget(_, start):
                whole = start == 0
            case Fork(source, _, length):
                whole = length == len(self._cells[source])
            case Save(sequence, start, end):
                whole = start == 0 and end == len(self._cells[sequence])
            case Restore(_, start, pieces):
                whole = start == 0 and [(p.offset, p.length) for p in pieces] == [(0, len(self._spans[pieces[0].span]))]
            case Drop() | Adopt():
                whole = True
            case SaveCheckpoint() | LoadCheckpoint() | CopyCheckpoint() | AdoptCheckpoint():
                whole = False
        if not whole:
            raise AssertionError(f"{operation} uses a part of a state that can only be copied as a whole")

    def _append(self, span: Span, adapters: Adapters) -> None:
        """Write the tokens of a span, its drafts and its padding into cells."""
        history = self._history(span.sequence, span.start)
        if any(cell.adapters != adapters for cell in history):
            raise AssertionError(f"sequence {span.sequence} was not computed under the adapters {adapters}")
        if self._states is not None:
            known = [cell.token for cell in history]
            self._states.advance(span.sequence, known, [*known, *span.tokens])
        draft_by_grammar([span])
        if self._draft and not span.draft and span.drafting is not None and span.drafting.params.n_max:
            span.draft = self._draft_tokens(span, [*(cell.token for cell in history), *span.tokens], adapters)
            span.draft_source = "model" if span.draft else None
        cut_drafts([span])
        computed = (*span.tokens, *span.draft, *span.tokens[-1:] * span.padding)
        history.extend(Cell(token, adapters) for token in computed)
        self._check_room()

    def _sample(self, span: Span, adapters: Adapters) -> Sampled | None:
        """Sample from what the cells hold, and remove the drafts that are wrong."""
        history = self._cells[span.sequence]
        tokens = [cell.token for cell in history]
        probs = [
            fake_logprobs(tokens[: span.start + at], target, span.target_probs)
            for at, target in enumerate(span.targets, 1)
        ]
        end = span.start + len(span.tokens)
        if span.sampler is None:
            del history[end:]
            return Sampled(None, prompt=probs) if probs else None
        chosen: list[Sampled] = []
        for expected in (*span.draft, None):
            sampler: FakeSampler = span.sampler
            try:
                chosen.append(sampler.choose(tokens[: end + len(chosen)], adapters))
            except StepFailed:
                raise
            except Exception as error:
                chosen.append(Sampled(None, error=sampling_failed(error)))
            if chosen[-1].last or chosen[-1].token != expected or len(chosen) == sampler.step_limit:
                break
        del history[end + len(chosen) - 1 :]
        return msgspec.structs.replace(
            chosen[0], prompt=probs, drafted=len(span.draft), draft_source=span.draft_source, more=chosen[1:]
        )

    def _draft_tokens(self, span: Span, history: list[int], adapters: Adapters) -> list[int]:
        """The tokens of the answer, but every `draft`-th token of the text is wrong."""
        assert span.drafting is not None, "the caller checked"
        params = span.drafting.params
        drafted: list[int] = []
        while len(drafted) < params.n_max:
            text = [*history, *drafted]
            try:
                token = next_token(text, span.sampler.params, adapters)
            except Exception:  # the sampler will fail there, and only its request
                break
            if token in self.vocab.end_tokens:
                break
            drafted.append(token if len(text) % self._draft else (token + 1) % 256)
        return drafted if len(drafted) >= params.n_min else []

    def _tokens(self, sequence: int) -> list[int]:
        return [cell.token for cell in self._cells.get(sequence, ())]

    def _held(self, sequence: int, start: int, end: int) -> list[Cell]:
        cells = self._cells[sequence][start:end]
        if len(cells) != end - start:
            raise AssertionError(f"sequence {sequence} does not hold the tokens {start}..{end}")
        return cells

    def _history(self, sequence: int, start: int) -> list[Cell]:
        history = self._cells.setdefault(sequence, [])
        if start != len(history):
            raise AssertionError(f"sequence {sequence} holds {len(history)} tokens, not {start}")
        return history

    def _check_room(self) -> None:
        if self.used_cells > self.shape.cells:
            raise AssertionError(f"{self.used_cells} cells are used, but there are {self.shape.cells}")


def _other_workers() -> list[int]:
    """The other workers of the same gateway."""
    import psutil  # slow to import, and needed only here

    processes = [process.info for process in psutil.process_iter(["pid", "ppid", "cmdline"])]
    return [
        info["pid"]
        for info in processes
        if info["ppid"] == os.getppid() and info["pid"] != os.getpid() and "paddock.worker" in (info["cmdline"] or ())
    ]


def fake_info(**more: Any) -> ModelInfo:
    return ModelInfo(
        description="fake",
        n_vocab=N_VOCAB,
        n_params=0,
        size_bytes=0,
        fingerprint="fp_fake",
        engine="fake",
        bos=FakeVocab.bos,
        eos=FakeVocab.eos,
        **more,
    )


def parse(path: str) -> dict[str, float]:
    """Parse `fake:` and its options, `name=number` pairs separated by commas."""
    options: dict[str, float] = {}
    for pair in filter(None, path.removeprefix(SCHEME).split(",")):
        name, _, value = pair.partition("=")
        try:
            options[name] = float(value)
        except ValueError:
            raise ModelLoadFailed(f"{pair!r} is not an option of the fake engine: write name=number") from None
        if name not in _OPTIONS:
            raise ModelLoadFailed(f"the fake engine has no option {name!r}; it has {', '.join(_OPTIONS)}")
    return options
