"""The inputs of a request → token ids, refused in words when one cannot be taken whole."""

from __future__ import annotations

from collections.abc import Sequence

from paddock.engine import PooledEngine
from paddock.errors import ContextLengthExceeded, InvalidRequest
from paddock.types import MixedPrompt, PairPrompt, PoolRequest, TextPrompt, TokenPrompt

# Texts are mostly words; one with more bytes than this for each token that fits is not worth the time to read it.
_MOST_BYTES_PER_TOKEN = 256
_FLOAT = 4
# As text it is several times that, and writing it holds everybody up.
_MOST_BYTES = 32 << 20


class InputReader:
    """Holds no state that changes, so it may run beside the engine."""

    def __init__(self, engine: PooledEngine) -> None:
        self._engine = engine
        self._vocab = engine.vocab
        self._info = engine.info

    def read(self, request: PoolRequest) -> list[list[int]]:
        """The tokens of every input. Raises `InvalidRequest` for anything that this model cannot do."""
        width = self._info.n_embd
        if request.dimensions is not None and request.dimensions > width:
            raise InvalidRequest(
                f"{request.dimensions} dimensions of vectors that have {width} were asked for", param="dimensions"
            )
        several = len(request.inputs) > 1
        inputs = [
            self._read(prompt, f"{request.param}[{index}]" if several else request.param)
            for index, prompt in enumerate(request.inputs)
        ]
        rows = sum(map(len, inputs)) if self._info.pooling == "none" else len(inputs)
        if rows * width * _FLOAT > _MOST_BYTES:
            raise InvalidRequest(
                f"the answer would be {rows} vectors of {width} numbers, {rows * width * _FLOAT >> 20} MiB; "
                f"the limit is {_MOST_BYTES >> 20} MiB: send fewer inputs at once",
                param=request.param,
            )
        return inputs

    def _read(self, prompt: TextPrompt | TokenPrompt | MixedPrompt | PairPrompt, param: str) -> list[int]:
        match prompt:
            case PairPrompt(query, document):
                self._refuse_hopeless(query + document, param)
                tokens = self._engine.pair(query, document)
            case TextPrompt(text):
                tokens = self._join([text], param)
            case TokenPrompt(parts):
                tokens = self._join(parts, param)
            case MixedPrompt(parts):
                tokens = self._join(parts, param)
        if not tokens:
            raise InvalidRequest("the input is empty", param=param)
        if len(tokens) > self._info.n_ctx:
            raise self._too_long(f"{len(tokens)} tokens", param)
        return tokens

    def _join(self, parts: Sequence[str | int], param: str) -> list[int]:
        self._refuse_hopeless("".join(part for part in parts if isinstance(part, str)), param)
        tokens: list[int] = []
        for index, part in enumerate(parts):
            if isinstance(part, str):
                tokens += self._vocab.tokenize(part, add_special=index == 0, parse_special=True)
            elif 0 <= part < self._info.n_vocab:
                tokens.append(part)
            else:
                raise InvalidRequest(f"token ids must lie in 0..{self._info.n_vocab - 1}", param=param)
        return tokens

    def _refuse_hopeless(self, text: str, param: str) -> None:
        """Tokenising ten megabytes takes seconds that others would wait for."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > _MOST_BYTES_PER_TOKEN * self._info.n_ctx:
            raise self._too_long(f"{size} bytes", param)

    def _too_long(self, size: str, param: str) -> ContextLengthExceeded:
        info = self._info
        hint = (
            "" if info.n_ctx == info.n_ctx_train else f" (of the {info.n_ctx_train} it was trained on: see -b and -c)"
        )
        return ContextLengthExceeded(
            f"an input has {size}, but this model takes {info.n_ctx} tokens at once{hint}", param=param
        )
