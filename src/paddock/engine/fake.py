"""A model without weights, shipped for tests and for trying the server: `paddock serve -m fake:`.

It keeps each sequence's tokens as a real engine keeps keys and values, and answers from what it finds there, so a
scheduler that loses or mixes up cache produces different text. Its vocabulary is bytes and four special tokens.

What the last message says decides the answer:
- `say: WORDS` is answered with WORDS, byte for byte;
- `crash: …` aborts the process in the middle of the answer, as a native assertion does;
- `raise: …` raises an exception while the next token is chosen, and `break: …` one that ends the step for everybody;
- `hang: …` never comes to an end, where the option `hang=1` allows it;
- anything else gets words drawn from a hash of the whole conversation and the seed.
Text that is no conversation goes on with letters hashed from all of it. Under a constraint it says what it would have
said as far as that is allowed, and otherwise the shortest thing that comes to mind.
The path's options tune it: `fake:delay=0.05,n_ctx=512` waits that long in each step and has that context;
`load=3` takes so many seconds to load; `memory=100` holds so many MiB; `sigill=1` dies while loading unless it is told
not to repack; `whole=1` has a memory that can only be copied as a whole, and takes it amiss when somebody tries a part;
`short=100` has so many cells fewer than it says;
`alone=1` finds no memory to load while its gateway has another worker.
Adapters change what it says of its own accord; and it takes it amiss when a sequence is gone on with under others than
it was begun under.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from paddock.engine.grammar import Grammar, GrammarSource
from paddock.engine.sampling_errors import sampling_failed
from paddock.errors import ConstraintFailed, ModelLoadFailed, NoCells, OutOfMemory
from paddock.types import (
    Adapters,
    Adopt,
    CacheShape,
    Constraint,
    Drop,
    EngineOptions,
    Forget,
    Fork,
    ModelInfo,
    Operation,
    Piece,
    Restore,
    Sampled,
    SamplingParams,
    Save,
    SnapshotSize,
    Span,
    StateOrigin,
    TokenLogprobs,
)

SCHEME = "fake:"
_OPTIONS = ("alone", "delay", "draft", "hang", "load", "memory", "n_ctx", "short", "sigill", "whole")
_SPECIAL = {"<s>": 256, "</s>": 257, "<|im_start|>": 258, "<|im_end|>": 259}
_NAMES = re.compile("(" + "|".join(map(re.escape, _SPECIAL)) + ")")
_BOS, _EOS, _START, _END = 256, 257, 258, 259
_WORDS = (
    *("a", "the", "one", "grey", "brown", "quick", "horse", "mare", "foal", "runs", "stands", "grazes", "sleeps"),
    *("by", "under", "near", "gate", "oak", "brook", "hill"),
)
_ANSWER_WORDS = 40
_CRASH_AFTER = 8
_N_CTX = 8192
_N_VOCAB = 260
_BYTES_PER_TOKEN = 1024
_TOKENS_AT_ONCE = 16
_BYTES_PER_SNAPSHOT = 4096
_TOGETHER = 3
_DRAFTS_FOR = 3


class FakeVocab:
    bos = "<s>"
    eos = "</s>"
    adds_bos = True
    end_tokens = frozenset({_EOS, _END})
    infill = None
    longest_piece = max(map(len, _SPECIAL))

    def __init__(self, chat_template: str = "") -> None:
        self.chat_template = chat_template or None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [_BOS] if add_special else []
        for part in _NAMES.split(text) if parse_special else [text]:
            tokens.extend([_SPECIAL[part]] if parse_special and part in _SPECIAL else part.encode("utf-8"))
        return tokens

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def name(self, token: int) -> bytes:
        return self.piece(token) or next(name for name, special in _SPECIAL.items() if special == token).encode()


@dataclass(slots=True)
class FakeSampler:
    params: SamplingParams
    grammar: Grammar | None = None
    dictated: list[int] = field(default_factory=list)
    may_hang: bool = False

    def sibling(self, params: SamplingParams) -> FakeSampler:
        return FakeSampler(params, None if self.grammar is None else self.grammar.fork(), may_hang=self.may_hang)

    def dictate(self, tokens: Sequence[int]) -> None:
        self.dictated += tokens

    def choose(self, history: list[int], adapters: Adapters) -> Sampled:
        if self.may_hang and _last_question(history).startswith(b"hang:"):
            hang()
        token = self.dictated.pop(0) if self.dictated else _next_token(history, self.params, adapters)
        if self.grammar is None:
            return Sampled(token, self._opinion(history, token))
        forbidden = self.grammar.forbidden()
        simple = (token, _EOS, *b'"}]0', *range(256))
        token = next((token for token in simple if not forbidden[token]), token)
        if not self.grammar.consume(token):
            problem = self.grammar.problem or "no token is left that it allows"
            return Sampled(None, error=ConstraintFailed(f"the answer could not be kept within its grammar: {problem}"))
        return Sampled(token, self._opinion(history, token), last=self.grammar.complete)

    def _opinion(self, history: list[int], token: int) -> TokenLogprobs | None:
        return None if self.params.n_probs < 0 else opinion(history, token, self.params.n_probs)


class FakeEngine:
    """Implements `Engine`."""

    def __init__(self, path: str, options: EngineOptions, on_progress: Callable[[float], None]) -> None:
        settings = parse(path)
        if settings.get("sigill") and options.repack:
            os.kill(os.getpid(), signal.SIGILL)
        if settings.get("alone") and (others := _other_workers()):
            raise OutOfMemory(f"the fake engine wants to be alone, and there are {len(others)} workers besides")
        time.sleep(settings.get("load", 0.0))
        self._ballast = b"x" * (int(settings.get("memory", 0)) << 20)
        on_progress(1.0)
        self.vocab = FakeVocab(options.chat_template)
        self._grammars = GrammarSource(self.vocab, _N_VOCAB)
        self.takes_turns = False
        self.n_batch = options.n_batch
        self._delay = settings.get("delay", 0.0)
        self._hangs = bool(settings.get("hang"))
        self._whole = bool(settings.get("whole"))
        self._short = int(settings.get("short", 0))
        self._draft = int(settings.get("draft", 0))
        self._cells: dict[int, list[_Cell]] = {}
        self._spans: dict[int, list[_Cell]] = {}
        n_ctx = int(settings.get("n_ctx", min(options.n_ctx, _N_CTX)))
        unified = options.kv_unified
        self.shape = CacheShape(
            cells=n_ctx if unified else n_ctx * options.parallel,
            unified=unified,
            bytes_per_token=_BYTES_PER_TOKEN,
            ram_bytes=options.cache_ram_bytes,
            reuse="snapshot" if self._whole else "prefix",
            snapshot=SnapshotSize(fixed=_BYTES_PER_SNAPSHOT, per_token=_BYTES_PER_TOKEN),
            most_copied=_TOKENS_AT_ONCE,
            spare=1 if unified else 0,
        )
        self.info = ModelInfo(
            description="fake",
            n_ctx=n_ctx,
            n_ctx_train=_N_CTX,
            n_vocab=_N_VOCAB,
            n_params=0,
            size_bytes=0,
            n_slots=options.parallel,
            fingerprint="fp_fake",
            reuse=self.shape.reuse,
            engine="fake",
            chat_template=options.chat_template,
            bos=self.vocab.bos,
            eos=self.vocab.eos,
            n_cells=self.shape.cells,
            kv_unified=unified,
            bytes_per_token=_BYTES_PER_TOKEN,
            together=1 if unified or self._whole else _TOGETHER,
            adapters=options.adapters,
            drafts_for=_DRAFTS_FOR if self._draft and not self._whole else 0,
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

    def prepare_constraints(self) -> None:
        self._grammars.prepare()

    def compile(self, constraint: Constraint) -> Grammar:
        return self._grammars.compile(constraint)

    def sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Grammar | None = None) -> FakeSampler:
        return FakeSampler(params, None if grammar is None else grammar.fork(), may_hang=self._hangs)

    def apply(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if self._whole:
                self._refuse_parts(operation)
            match operation:
                case Forget(sequence, start):
                    del self._cells.setdefault(sequence, [])[start:]
                case Fork(source, target, length, start):
                    cells = self._cells[source][start:length]
                    if len(cells) != length - start:
                        raise AssertionError(f"sequence {source} does not hold {start}..{length}")
                    history = self._history(target, start)
                    history += cells if self.shape.unified else map(copy, cells)
                case Save(sequence, start, end, span):
                    cells = self._cells[sequence][start:end]
                    if len(cells) != end - start:
                        raise AssertionError(f"sequence {sequence} does not hold {start}..{end}")
                    self._spans[span] = list(map(copy, cells))
                case Restore(sequence, start, pieces):
                    history = self._history(sequence, start)
                    history += map(copy, self.lend(pieces))
                case Adopt(state, start, end, span):
                    self._spans[span] = state[start:end]
                case Drop(span):
                    del self._spans[span]
        self._check_room()

    def decode(self, spans: Sequence[Span], *, exact: bool = False, adapters: Adapters = ()) -> list[Sampled | None]:
        if self._delay:
            time.sleep(self._delay)
        needed = self.used_cells + sum(len(span.tokens) for span in spans)
        if needed > self.shape.cells - self._short:
            raise NoCells(f"{needed} cells are needed; there are {self.shape.cells - self._short}")
        return [self._advance(span, adapters) for span in spans]

    def used_sequences(self) -> list[int]:
        return [sequence for sequence, cells in self._cells.items() if cells]

    def lend(self, pieces: Sequence[Piece]) -> list[_Cell]:
        return [
            cell for piece in pieces for cell in self._spans[piece.span][piece.offset : piece.offset + piece.length]
        ]

    def pack(self, lent: list[_Cell]) -> Iterator[bytes]:
        yield msgspec.msgpack.encode([(cell.token, cell.adapters) for cell in lent])

    def unpack(self, data: memoryview, tokens: int) -> list[_Cell]:
        try:
            state = msgspec.msgpack.decode(data, type=list[tuple[int, Adapters]])
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        if len(state) != tokens:
            raise ValueError(f"the state of {len(state)} tokens instead of {tokens}")
        return [_Cell(token, adapters) for token, adapters in state]

    def close(self) -> None:
        self._cells.clear()

    @property
    def used_cells(self) -> int:
        return len({id(cell) for cells in self._cells.values() for cell in cells})

    @property
    def stored_tokens(self) -> int:
        return sum(map(len, self._spans.values()))

    def _refuse_parts(self, operation: Operation) -> None:
        """A real engine would go on with a wrong state and say nothing."""
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
        if not whole:
            raise AssertionError(f"{operation} takes a part of what can only be had as a whole")

    def _advance(self, span: Span, adapters: Adapters) -> Sampled | None:
        history = self._history(span.sequence, span.start)
        if any(cell.adapters != adapters for cell in history):
            raise AssertionError(f"sequence {span.sequence} was not computed under {adapters}")
        span.draft = self._guess(span, [*(cell.token for cell in history), *span.tokens], adapters)
        history.extend(_Cell(token, adapters) for token in (*span.tokens, *span.draft))
        self._check_room()
        tokens = [cell.token for cell in history]
        judged = [
            opinion(tokens[: span.start + at], target, span.target_probs) for at, target in enumerate(span.targets, 1)
        ]
        if span.sampler is None:
            return Sampled(None, prompt=judged) if judged else None
        end = span.start + len(span.tokens)
        chosen: list[Sampled] = []
        for guess in (*span.draft, None):
            sampler: FakeSampler = span.sampler
            try:
                chosen.append(sampler.choose(tokens[: end + len(chosen)], adapters))
            except _BrokenStep:
                raise
            except Exception as error:
                chosen.append(Sampled(None, error=sampling_failed(error)))
            if chosen[-1].last or chosen[-1].token != guess:
                break
        del history[end + len(chosen) - 1 :]
        return msgspec.structs.replace(chosen[0], prompt=judged, drafted=len(span.draft), more=chosen[1:])

    def _guess(self, span: Span, history: list[int], adapters: Adapters) -> list[int]:
        """What will be said, but for every so many-th token of the text, which is wrong."""
        if not self._draft or span.drafting is None:
            return []
        params = span.drafting.params
        guessed: list[int] = []
        while len(guessed) < params.n_max:
            text = [*history, *guessed]
            token = _next_token(text, span.sampler.params, adapters)
            if token in self.vocab.end_tokens:
                break
            guessed.append(token if len(text) % self._draft else (token + 1) % 256)
        return guessed if len(guessed) >= params.n_min else []

    def _history(self, sequence: int, start: int) -> list[_Cell]:
        history = self._cells.setdefault(sequence, [])
        if start != len(history):
            raise AssertionError(f"sequence {sequence} holds {len(history)} tokens, not {start}")
        return history

    def _check_room(self) -> None:
        if self.used_cells > self.shape.cells:
            raise AssertionError(f"{self.used_cells} cells are used, but there are {self.shape.cells}")


class _BrokenStep(Exception):
    """What ends a whole step, as a failed decode does."""


@dataclass(slots=True, eq=False)
class _Cell:
    """One place in the cache; sequences that share a prefix share its cells."""

    token: int
    adapters: Adapters


def _next_token(history: list[int], sampling: SamplingParams, adapters: Adapters) -> int:
    start = max((index for index, token in enumerate(history) if token == _START), default=-1)
    role, _, said = _bytes(history[start + 1 :]).partition(b"\n")
    if start < 0 or role != b"assistant":
        return _continuation(history, adapters)
    prompt = history[:start]
    question = _last_message(prompt)
    if question.startswith(b"crash:") and len(said) >= _CRASH_AFTER:
        os.abort()
    if question.startswith(b"raise:") and len(said) >= _CRASH_AFTER:
        raise RuntimeError("the fake sampler was told to fail")
    if question.startswith(b"break:") and len(said) >= _CRASH_AFTER:
        raise _BrokenStep("the fake engine was told to fail")
    answer = _answer(prompt, question, sampling, adapters)
    return answer[len(said)] if len(said) < len(answer) else _END


def hang() -> None:
    """Never to return, and without holding up the other threads, as native code does it."""
    threading.Event().wait()


def opinion(history: list[int], token: int, count: int) -> TokenLogprobs:
    """How likely the token is after all this, or so it says; and the same of its neighbours in the alphabet."""

    def logprob(token: int) -> float:
        return -1 - hashlib.sha256(repr([*history, token]).encode()).digest()[0] / 64

    others = [(token + step) % _N_VOCAB for step in range(count)]
    return TokenLogprobs(logprob(token), sorted(((id, logprob(id)) for id in others), key=lambda pair: -pair[1]))


def _continuation(history: list[int], adapters: Adapters) -> int:
    """Text that is no conversation goes on with letters hashed from all of it, up to the next multiple of 64."""
    if len(history) % 64 == 0:
        return _EOS
    digest = hashlib.sha256(f"{history}{adapters or ''}".encode()).digest()
    return b"abcdefghijklmnopqrstuvwxyz "[digest[0] % 27]


def _last_message(prompt: list[int]) -> bytes:
    start = max((index for index, token in enumerate(prompt) if token == _START), default=-1)
    return _bytes(prompt[start + 1 :]).partition(b"\n")[2].removesuffix(b"\n")


def _last_question(history: list[int]) -> bytes:
    """What the reply that is being written is a reply to."""
    start = max((index for index, token in enumerate(history) if token == _START), default=0)
    return _last_message(history[:start])


def _bytes(tokens: list[int]) -> bytes:
    return bytes(token for token in tokens if token < 256)


def _answer(prompt: list[int], question: bytes, sampling: SamplingParams, adapters: Adapters) -> bytes:
    if question.startswith(b"say: "):
        return question.removeprefix(b"say: ")
    seed = sampling.seed if sampling.temperature > 0 else 0
    key = hashlib.sha256(f"{seed}:{prompt}{adapters or ''}".encode()).digest() * 2
    return " ".join(_WORDS[byte % len(_WORDS)] for byte in key[:_ANSWER_WORDS]).encode()


def _other_workers() -> list[int]:
    """Those of the same gateway, from the process table."""
    sibling = f"PPid:\t{os.getppid()}\n"
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                status, command = (entry / "status").read_text(), (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            if sibling in status and b"paddock.worker\0" in command:
                found.append(int(entry.name))
    return found


def parse(path: str) -> dict[str, float]:
    """`fake:` and its options, `name=number` pairs between commas."""
    options: dict[str, float] = {}
    for pair in filter(None, path.removeprefix(SCHEME).split(",")):
        name, _, value = pair.partition("=")
        try:
            options[name] = float(value)
        except ValueError:
            raise ModelLoadFailed(f"the fake engine does not understand {pair!r}") from None
        if name not in _OPTIONS:
            raise ModelLoadFailed(f"the fake engine has no option {name!r}; it has {', '.join(_OPTIONS)}")
    return options
