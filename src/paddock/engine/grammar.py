"""Constraints → token masks, by llguidance: what an answer may go on with, so that it can only become what was asked
for. Needs nothing of a model but its vocabulary.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from paddock.engine.candidates import Logits
from paddock.engine.protocol import Vocab
from paddock.engine.schema import rewritten, without_year_zero
from paddock.errors import InvalidRequest
from paddock.types import Constraint

_LARGEST_SOURCE = 1 << 16
# Time grows with the square of the size. Ordinary schemas of this size are ready within the time that they have, those
# of twice the size not always (docs/lab.md).
_LARGEST_SCHEMA = 1 << 17
# llguidance recurses from definition to definition, and a native stack that overflows ends the process. More than this
# many levels overflow the usual 8 MiB; the threads of a worker have eight times that.
_DEEPEST = 2000
# Time and memory grow with the square of the first and with the second, before any limit of llguidance's is asked.
_MOST_PATTERNS = 64
_LARGEST_MULTIPLES = 50_000
# As llama.cpp has it: without a bound small models go on indenting for ever.
_WHITESPACE = r" |\n{1,2}[ \t]{0,20}"
_UNSATISFIABLE = "NoExtensionBias"
_LONGEST_MESSAGE = 300
_OPTIONS = re.compile(r"\s*(?:Enable|Set|Use|Try) ['`\"]?[a-z_]+['`\"]? option.*", re.DOTALL)
_LIMITS = LLParserLimits(verbose_errors=False)
_CEILINGS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), np.inf, -np.inf
).astype(np.float32)
"""For each byte of a mask, the most that its eight tokens' logits may be."""
_ESCAPES = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)")
_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/')


class Grammar:
    """How far one answer has come in its constraint. Never shared between answers."""

    def __init__(self, matcher: LLMatcher, n_vocab: int, param: str = "") -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab
        self.param = param
        """The field of the request that asked for it."""

    def fork(self) -> Grammar:
        """A state of its own for another answer."""
        return Grammar(self._matcher.deep_copy(), self._n_vocab, self.param)

    def forbidden(self) -> npt.NDArray[np.bool_]:
        """For each token, whether it may not come next."""
        bits = np.unpackbits(~self._bits(), count=self._n_vocab, bitorder="little")
        return bits.astype(np.bool_)

    def restrict(self, row: Logits) -> None:
        """Take out of the row, in place, what may not come next."""
        # Without a branch for each token: as fast for one mask as for another.
        np.minimum(row, _CEILINGS.take(self._bits(), axis=0).ravel()[: len(row)], out=row)

    def _bits(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._matcher.compute_bitmask(), np.uint8)

    def consume(self, token: int) -> bool:
        """Go on with this token. False where it is not allowed: the answer cannot be finished any more."""
        return bool(self._matcher.consume_token(token))

    @property
    def complete(self) -> bool:
        """Nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def problem(self) -> str:
        """Why it came to nothing, in a line; empty while all is well."""
        message = " ".join(self._matcher.get_error().removesuffix("<non-verbose/>").split())
        return "nothing would satisfy it" if message == _UNSATISFIABLE else message[:_LONGEST_MESSAGE]


class GrammarSource:
    """Compiles constraints for one vocabulary. Safe to use from any thread."""

    def __init__(self, vocab: Vocab, n_vocab: int) -> None:
        self._vocab = vocab
        self._n_vocab = n_vocab
        self._building = threading.Lock()
        self._built: LLTokenizer | None = None

    def prepare(self) -> None:
        """Build the tables that all constraints need: half a second for 50,000 tokens, several for 250,000. They are
        built once, for the first constraint rather than for the model. Whoever comes meanwhile waits.
        """
        with self._building:
            if self._built is None:
                vocabulary = TokenizerWrapper(_Vocabulary(self._vocab, self._n_vocab))
                self._built = LLTokenizer(vocabulary, eos_token=sorted(self._vocab.end_tokens) or None)

    def compile(self, constraint: Constraint) -> Grammar:
        """Raises `InvalidRequest` for what is malformed, too large, or cannot be enforced."""
        try:
            source = _source(constraint)
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
            grammar = Grammar(matcher, self._n_vocab, constraint.param)
            if not grammar.problem:
                grammar.forbidden()  # some are found to be too complex only now
        except (_Refused, ValueError) as error:
            raise _refusal(constraint, str(error)) from None
        if grammar.problem:
            for part in constraint.parts:  # should one of them alone be the reason, it is the one to name
                self.compile(part)
            raise _refusal(constraint, grammar.problem)
        return grammar

    @property
    def _tokenizer(self) -> LLTokenizer:
        self.prepare()
        assert self._built is not None, "it was just built"
        return self._built


class _Vocabulary:
    """What llguidance wants to know of a tokeniser. A token is what a reader sees of it, or else it is special."""

    bos_token_id: int | None = None

    def __init__(self, vocab: Vocab, n_vocab: int) -> None:
        self._vocab = vocab
        self.eos_token_id = min(vocab.end_tokens, default=0)
        self.tokens = [vocab.piece(token) or b"\xff<|%d|>" % token for token in range(n_vocab)]
        self.special_token_ids = [token for token, piece in enumerate(self.tokens) if piece.startswith(b"\xff<|")]

    def __call__(self, text: str) -> list[int]:
        """A text in the middle of another as tokens: what the model is made to say where there is but one way on."""
        tokens = self._vocab.tokenize(text, add_special=False, parse_special=False)
        data = text.encode("utf-8")
        # Some tokenisers put a space before every text.
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
    """Not even worth showing to llguidance."""


def _source(constraint: Constraint) -> str:
    if not constraint.parts:
        return _simple(constraint)
    # A grammar that refers to others. It is our own; the others are the client's, and taken with the usual care.
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
        raise _Refused(f"it has {len(constraint.source)} characters; at most {largest} are taken")
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
    r"""An escape such as `\u00e9` → `é`, which the converter knows. What means something to a grammar stays escaped."""
    digits = escape[1] or escape[2]
    if not digits:
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise _Refused(f"{escape[0]} is no character")
    return chr(code) if code > 0x7F else f"\\x{code:02x}"


def _schema(source: str) -> str:
    schema = json.loads(source)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise _Refused("a schema must be an object" if schema is not False else "nothing satisfies the schema false")
    if "x-guidance" in schema:
        raise _Refused("'x-guidance' could loosen the schema, so it is not taken")
    _refuse_costly(schema)
    references = {str(value) for name, value in _pairs(schema) if name == "$ref"}
    _refuse_depth(_depth(schema), 1 + len(references))
    schema = without_year_zero(rewritten(schema))
    _refuse_depth(_depth(schema), 1 + len(references))
    # What it does not know it then refuses, rather than leave it out.
    strict: Any = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": _WHITESPACE}
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=strict))


def _refuse_costly(schema: dict[str, Any]) -> None:
    pairs = list(_pairs(schema))
    patterns = sum(len(value) for name, value in pairs if name == "patternProperties" and isinstance(value, dict))
    if patterns > _MOST_PATTERNS:
        raise _Refused(f"it has {patterns} patternProperties; at most {_MOST_PATTERNS} are taken")
    multiples = sum(_digits(value) for name, value in pairs if name == "multipleOf")
    if multiples > _LARGEST_MULTIPLES:
        raise _Refused(f"its multipleOf, without zeros, come to {multiples}; at most {_LARGEST_MULTIPLES} are taken")


def _digits(number: Any) -> int:
    """What is left of a number without its point and the zeros around."""
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
        raise _Refused(f"its {definitions} definitions, up to {levels} levels deep, are more than can be taken")


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _pairs(inner)


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _plain(reason: str) -> str:
    """A library's message without the names of its options, which nobody here can set."""
    if "oneOf" in reason:
        return (
            "it is not certain that the branches of a oneOf exclude each other; use anyOf, or give each branch another "
            "type, or a required property with another const"
        )
    return _OPTIONS.sub("", reason) or "it is not supported"


def _refusal(constraint: Constraint, reason: str) -> InvalidRequest:
    reason = _plain(reason)
    return InvalidRequest(f"{constraint.param} cannot be enforced: {reason}", param=constraint.param)
