"""Tokenises the inputs of embedding and reranking requests, and refuses those that do not fit."""

from __future__ import annotations

from collections.abc import Callable

from paddock.engine import PooledEngine
from paddock.errors import ContextLengthExceeded, InvalidRequest
from paddock.types import MixedPrompt, PairPrompt, PoolRequest, TextPrompt, TokenPrompt
from paddock.worker.preparation import Prepared, Preparer
from paddock.worker.tokens import joined_text, prompt_parts, tokenize_parts

# A text with more bytes than this for each token of the context is refused without tokenising it.
_MAX_BYTES_PER_TOKEN = 256
_FLOAT = 4
# Larger answers would delay other requests: as JSON they are several times as large.
_MAX_BYTES = 32 << 20


class InputPreparer(Preparer):
    """For models that compute embeddings or scores."""

    def __init__(self, engine: PooledEngine, post: Callable[[Prepared], None], is_live: Callable[[int], bool]) -> None:
        super().__init__(post, is_live)
        self._engine = engine
        self._info = engine.info

    def _prepare(self, id: int, request: PoolRequest) -> list[list[int]]:
        """The tokens of every input. Raises `InvalidRequest` for anything that this model cannot do."""
        width = self._info.n_embd
        if request.dimensions is not None and request.dimensions > width:
            message = f"dimensions is {request.dimensions}, but the vectors of this model have {width}"
            raise InvalidRequest(message, param="dimensions")
        several = len(request.inputs) > 1
        inputs = [
            self._read(prompt, f"{request.param}[{index}]" if several else request.param)
            for index, prompt in enumerate(request.inputs)
        ]
        rows = sum(map(len, inputs)) if self._info.pooling == "none" else len(inputs)
        if rows * width * _FLOAT > _MAX_BYTES:
            raise InvalidRequest(
                f"the answer would be {rows} vectors of {width} numbers, {rows * width * _FLOAT >> 20} MiB; "
                f"the limit is {_MAX_BYTES >> 20} MiB: send fewer inputs",
                param=request.param,
            )
        return inputs

    def _read(self, prompt: TextPrompt | TokenPrompt | MixedPrompt | PairPrompt, param: str) -> list[int]:
        if isinstance(prompt, PairPrompt):
            self._check_size(prompt.query + prompt.document, param)
            tokens = self._engine.pair(prompt.query, prompt.document)
        else:
            parts = prompt_parts(prompt)
            self._check_size(joined_text(parts), param)
            tokens = tokenize_parts(self._engine.vocab, self._info.n_vocab, parts, param)
        if not tokens:
            raise InvalidRequest("the input is empty", param=param)
        if len(tokens) > self._info.n_ctx:
            raise self._too_long(f"{len(tokens)} tokens", len(tokens), param)
        return tokens

    def _check_size(self, text: str, param: str) -> None:
        """Tokenising ten megabytes would delay other requests by seconds."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > _MAX_BYTES_PER_TOKEN * self._info.n_ctx:
            raise self._too_long(f"{size} bytes", size // _MAX_BYTES_PER_TOKEN, param)

    def _too_long(self, size: str, tokens: int, param: str) -> ContextLengthExceeded:
        info = self._info
        trained = info.n_ctx_train
        hint = "" if info.n_ctx == trained else f" (it was trained with {trained}: see -b and -c)"
        return ContextLengthExceeded(
            f"an input is too large: it has {size} and exceeds the available context size; the limit is {info.n_ctx} "
            f"tokens{hint}",
            param=param,
            numbers={"n_prompt_tokens": tokens, "n_ctx": info.n_ctx},
        )
