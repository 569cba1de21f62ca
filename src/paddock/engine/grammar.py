"""Compiles constraints to token masks with llguidance, for the vocabulary of a model."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from paddock.engine.candidates import Logits
from paddock.engine.forced_tokens import Habits, draft_forced
from paddock.engine.grammar_tables import build_tokenizer
from paddock.engine.protocol import Vocab
from paddock.engine.schema import rewritten, without_year_zero
from paddock.errors import InvalidRequest
from paddock.types import Constraint, objects_in

_LARGEST_SOURCE = 1 << 16
# The time to compile grows with the square of the size. Common schemas of this size are compiled within the time limit,
# schemas of twice the size not always (docs/lab.md).
_LARGEST_SCHEMA = 1 << 17
# llguidance recurses through definitions, and a native stack overflow ends the process. More levels than this overflow
# a stack of 8 MiB. The threads of a worker have eight times that.
_DEEPEST = 2000
# Time and memory grow with the square of the first and with the second, before llguidance checks its own limits.
_MOST_PATTERNS = 64
_LARGEST_MULTIPLES = 50_000
# As in llama.cpp. Without a limit small models indent forever.
_WHITESPACE = r" |\n{1,2}[ \t]{0,20}"
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 4096, 200
_UNSATISFIABLE = "NoExtensionBias"
_LONGEST_MESSAGE = 300
_OPTIONS = re.compile(r"\s*(?:Enable|Set|Use|Try) ['`\"]?[a-z_]+['`\"]? option.*", re.DOTALL)
_LIMITS = LLParserLimits(verbose_errors=False)
_CEILINGS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), np.inf, -np.inf
).astype(np.float32)
"""For each byte of a mask, the upper limits for the logits of its eight tokens."""
_ESCAPES = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)")
_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/')


class Grammar:
    """The state of one answer in its constraint. Answers never share one."""

    def __init__(
        self, matcher: LLMatcher, n_vocab: int, param: str = "", end_tokens: frozenset[int] = frozenset()
    ) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._end_tokens = end_tokens
        self._habits = Habits()
        self._failure: BaseException | None = None
        self.param = param
        """The request's field for the constraint."""

    def fork(self) -> Grammar:
        """A separate state for another answer. Only before its first token."""
        return Grammar(self._matcher.deep_copy(), self._n_vocab, self.param, self._end_tokens)

    def forbidden(self) -> npt.NDArray[np.bool_]:
        """For each token, whether it is forbidden next."""
        return np.unpackbits(~self._bits(), count=self._n_vocab, bitorder="little").view(np.bool_)

    def restrict(self, row: Logits) -> None:
        """Set the logits of forbidden tokens to -inf, in place."""
        # Without a branch for each token, so that the time does not depend on the mask.
        np.minimum(row, _CEILINGS.take(self._bits(), axis=0).ravel()[: len(row)], out=row)

    def _bits(self) -> npt.NDArray[np.uint8]:
        if self._failure is not None:
            raise self._failure
        return np.frombuffer(self._matcher.compute_bitmask(), np.uint8)

    def consume(self, token: int) -> bool:
        """Advance by this token. False: the token is not allowed, and the answer cannot be completed."""
        self._habits.record(self._matcher.compute_ff_bytes(), token)
        return bool(self._matcher.consume_token(token))

    def draft(self, most: int) -> list[int]:
        """The next tokens, at most so many, as far as the grammar forces them. Between two forced runs are tokens that
        followed before in this answer, such as the punctuation after a key. The state does not change.
        """
        try:
            return draft_forced(self._matcher, self._habits, self._end_tokens, most)
        except BaseException as error:  # also a panic in Rust
            self._failure = error  # the state is unknown now, so the next token is an error of this request
            return []

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens the grammar allows one after another. The state does not change."""
        try:
            return int(self._matcher.validate_tokens(list(tokens)))
        except BaseException as error:
            self._failure = error
            return 0

    @property
    def complete(self) -> bool:
        """No token may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def problem(self) -> str:
        """Why the grammar failed, in one line; empty: it has not."""
        message = " ".join(self._matcher.get_error().removesuffix("<non-verbose/>").split())
        return "nothing satisfies it" if message == _UNSATISFIABLE else message[:_LONGEST_MESSAGE]


class GrammarSource:
    """Compiles constraints for one vocabulary. Thread-safe."""

    def __init__(self, vocab: Vocab, n_vocab: int) -> None:
        self._vocab = vocab
        self._n_vocab = n_vocab
        self._building = threading.Lock()

    def prepare(self) -> None:
        """Build the tables that all constraints need, once. This takes half a second for 50,000 tokens and several
        seconds for 250,000, and 110 MiB, so it is done for the first constraint. Concurrent callers wait.
        """
        with self._building:
            _ = self._tokenizer

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return build_tokenizer(_Vocabulary(self._vocab, self._n_vocab), sorted(self._vocab.end_tokens))

    def compile(self, constraint: Constraint) -> Grammar:
        """May take a while. Raises `InvalidRequest` if the constraint is malformed, too large or not enforceable."""
        try:
            source = _source(constraint)
            self.prepare()
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
            grammar = Grammar(matcher, self._n_vocab, constraint.param, self._vocab.end_tokens)
            if not grammar.problem:
                grammar.forbidden()  # only now some prove too complex
        except (_Refused, ValueError) as error:
            raise _refusal(constraint, str(error)) from None
        if grammar.problem:
            for part in constraint.parts:  # name the part that fails on its own
                self.compile(part)
            raise _refusal(constraint, grammar.problem)
        return grammar


class _Vocabulary:
    """The interface that llguidance expects of a tokenizer. A token without visible text is special."""

    bos_token_id: int | None = None

    def __init__(self, vocab: Vocab, n_vocab: int) -> None:
        self._vocab = vocab
        self.eos_token_id = min(vocab.end_tokens, default=0)
        self.tokens = [vocab.piece(token) or b"\xff<|%d|>" % token for token in range(n_vocab)]
        self.special_token_ids = [token for token, piece in enumerate(self.tokens) if piece.startswith(b"\xff<|")]
        # The keys of a schema are forced again and again.
        self._remembered = lru_cache(_MOST_REMEMBERED)(self._tokenize)

    def __call__(self, text: str) -> list[int]:
        """Tokenize text that the grammar forces, in the middle of an answer."""
        return list(self._remembered(text)) if len(text) <= _LONGEST_REMEMBERED else self._tokenize(text)

    def _tokenize(self, text: str) -> list[int]:
        tokens = self._vocab.tokenize(text, add_special=False, parse_special=False)
        data = text.encode("utf-8")
        # Some tokenizers put a space before every text.
        return tokens if b"".join(map(self._vocab.piece, tokens)) == data else list(self._greedy(data))

    def _greedy(self, data: bytes) -> Iterator[int]:
        while data:
            size = next((n for n in range(self._longest, 0, -1) if data[:n] in self._by_piece), 1)
            yield self._by_piece.get(data[:size], self.eos_token_id)
            data = data[size:]

    @cached_property
    def _by_piece(self) -> dict[bytes, int]:
        return {piece: token for token, piece in enumerate(self.tokens)}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.tokens))


class _Refused(Exception):
    """The constraint is refused without llguidance."""


def _source(constraint: Constraint) -> str:
    if not constraint.parts:
        return _simple(constraint)
    # The grammar refers to its parts. It is ours, but the parts come from the client and are checked.
    grammars: list[dict[str, Any]] = [{"lark_grammar": constraint.source}]
    for index, part in enumerate(constraint.parts):
        try:
            source = _simple(part)
            grammar = {"lark_grammar": source} if part.kind in ("lark", "gbnf") else json.loads(source)["grammars"][0]
        except (_Refused, ValueError) as error:
            raise _refusal(part, str(error)) from None
        grammars.append({**grammar, "name": f"part{index}"})
    return json.dumps({"grammars": grammars})


def _simple(constraint: Constraint) -> str:
    largest = _LARGEST_SCHEMA if constraint.kind == "json_schema" else _LARGEST_SOURCE
    if len(constraint.source) > largest:
        raise _Refused(f"it has {len(constraint.source)} characters; the limit is {largest}")
    match constraint.kind:
        case "json_schema":
            return _schema(constraint.source)
        case "regex":
            return str(LLMatcher.grammar_from_regex(constraint.source))
        case "lark":
            return _lark(constraint.source)
        case "gbnf":
            try:
                return _lark(gbnf_to_lark(_ESCAPES.sub(_character, constraint.source)))
            except RecursionError:
                raise _Refused("it is nested too deeply") from None
            except Exception as error:  # the converter raises bare exceptions too
                raise _Refused(str(error)) from None


def _character(escape: re.Match[str]) -> str:
    r"""Replace an escape such as `\u00e9` by `é`, because the converter does not know it. ASCII stays escaped."""
    digits = escape[1] or escape[2]
    if not digits:
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise _Refused(f"{escape[0]} is not a character")
    return chr(code) if code > 0x7F else f"\\x{code:02x}"


def _schema(source: str) -> str:
    schema = json.loads(source)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise _Refused("a schema must be an object" if schema is not False else "nothing satisfies the schema false")
    if "x-guidance" in schema:
        raise _Refused("'x-guidance' is not supported, because it could loosen the schema")
    _refuse_costly(schema)
    references = {str(part["$ref"]) for part in objects_in(schema) if "$ref" in part}
    _refuse_depth(_depth(schema), 1 + len(references))
    schema = without_year_zero(rewritten(schema))
    _refuse_depth(_depth(schema), 1 + len(references))
    # Refuse unknown keywords instead of ignoring them.
    strict: Any = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": _WHITESPACE}
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=strict))


def _refuse_costly(schema: dict[str, Any]) -> None:
    parts = list(objects_in(schema))
    patterns = sum(len(value) for part in parts if isinstance(value := part.get("patternProperties"), dict))
    if patterns > _MOST_PATTERNS:
        raise _Refused(f"it has {patterns} patternProperties; the limit is {_MOST_PATTERNS}")
    multiples = sum(_digits(part.get("multipleOf")) for part in parts)
    if multiples > _LARGEST_MULTIPLES:
        raise _Refused(f"the sum of its multipleOf, without zeros, is {multiples}; the limit is {_LARGEST_MULTIPLES}")


def _digits(number: Any) -> int:
    """The significant digits of a number as an integer."""
    if type(number) not in (int, float) or not math.isfinite(number):
        return 0
    return int("".join(map(str, Decimal(repr(number)).as_tuple().digits)).rstrip("0") or "0")


def _lark(source: str) -> str:
    bare = _LITERALS.sub("", source)
    depth = deepest = 0
    for character in bare:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    _refuse_depth(1 + deepest, bare.count(":"))
    return str(LLMatcher.grammar_from_lark(source))


def _refuse_depth(levels: int, definitions: int) -> None:
    if levels * definitions > _DEEPEST:
        raise _Refused(f"its {definitions} definitions times its {levels} levels exceed the limit of {_DEEPEST}")


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _refusal(constraint: Constraint, reason: str) -> InvalidRequest:
    if "oneOf" in reason:
        reason = (
            "it is not certain that the branches of a oneOf exclude each other; use anyOf, or give each branch another "
            "type, or a required property with another const"
        )
    # llguidance suggests options of its own, which a client cannot set.
    reason = _OPTIONS.sub("", reason) or "it is not supported"
    return InvalidRequest(f"{constraint.param} cannot be enforced: {reason}", param=constraint.param)
