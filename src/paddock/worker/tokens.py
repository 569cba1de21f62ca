"""Token ids in requests: checked, and joined with texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paddock.engine import Vocab
from paddock.errors import InvalidRequest
from paddock.types import MixedPrompt, TextPrompt, TokenPrompt


def check_tokens(tokens: Iterable[int], n_vocab: int, param: str) -> None:
    if not all(0 <= token < n_vocab for token in tokens):
        raise InvalidRequest(f"token ids must be between 0 and {n_vocab - 1}", param=param)


def tokenize_parts(vocab: Vocab, n_vocab: int, parts: Sequence[str | int], param: str) -> list[int]:
    """Tokenise the texts among `parts`; the others are token ids."""
    check_tokens((part for part in parts if isinstance(part, int)), n_vocab, param)
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, int):
            tokens.append(part)
        else:
            tokens += vocab.tokenize(part, add_special=index == 0, parse_special=True)
    return tokens


def prompt_parts(prompt: TextPrompt | TokenPrompt | MixedPrompt) -> Sequence[str | int]:
    match prompt:
        case TextPrompt(text):
            return [text]
        case TokenPrompt(tokens):
            return tokens
        case MixedPrompt(parts):
            return parts


def joined_text(parts: Sequence[str | int]) -> str:
    return "".join(part for part in parts if isinstance(part, str))
