"""`POST /completion` and `POST /infill`: llama-server's own completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from paddock.errors import InvalidRequest
from paddock.fleet import Generation
from paddock.gateway.dialects.llama import schema
from paddock.gateway.generation.fields import RequestContext
from paddock.gateway.generation.generations import FinishedAnswer, collect_all, merged
from paddock.gateway.generation.native import NativeCompletion, NativeWriter
from paddock.gateway.generation.receipts import StreamReceipt, no_receipt
from paddock.gateway.http.framing import SSE
from paddock.types import GenerateRequest, InfillPrompt, Prompt

_encode = msgspec.json.Encoder().encode


def parse_completion(body: schema.NativeCompletionRequest, context: RequestContext) -> list[GenerateRequest]:
    if body.receipt and len(body.prompt) > 1:
        raise InvalidRequest(
            "receipt: the answers to several prompts are a list; send one request for each", param="receipt"
        )
    return [_request(body, context, prompt) for prompt in body.prompt]


def parse_infill(body: schema.InfillRequest, context: RequestContext) -> list[GenerateRequest]:
    prompt = InfillPrompt(
        body.input_prefix + body.prompt,
        body.input_suffix,
        [(file.filename, file.text) for file in body.input_extra],
        ("input_prefix", "input_suffix"),
        suffix_first=bool(body.spm_infill),
    )
    return [_request(body, context, prompt)]


def _request(body: schema.NativeFields, context: RequestContext, prompt: Prompt) -> GenerateRequest:
    if body.receipt and (body.n_cmpl or 1) > 1:
        raise InvalidRequest("receipt: n_cmpl answers are a list here; send one request for each", param="receipt")
    return body.request(
        context,
        prompt,
        max_tokens=body.limit,
        n_probs=body.n_probs or -1,
        n=body.n_cmpl or 1,
        echo=True,
        return_tokens=bool(body.return_tokens or body.stream),
        max_seconds=(body.t_max_predict_ms or 0) / 1000,
    )


class NativeAnswer:
    def __init__(
        self,
        body: schema.NativeFields,
        model: str,
        generations: Sequence[Generation],
        receipt: StreamReceipt = no_receipt,
    ) -> None:
        self._writer = NativeWriter(body, model, limit=body.limit, n_probs=body.n_probs or 0)
        self._response_fields = body.response_fields
        self._n = body.n_cmpl or 1
        self._generations = generations
        self._receipt = receipt

    async def whole(self) -> Any:
        """One object, or a list if there are several prompts or answers."""
        answers = await collect_all(self._generations, self._n)
        bodies = [
            self._final(place, index, answer)
            for place, written in enumerate(answers)
            for index, answer in enumerate(written)
        ]
        return bodies[0] if len(bodies) == 1 else bodies

    async def events(self) -> AsyncGenerator[bytes]:
        """The last event of an answer has the fields of a whole answer."""
        predicted: Counter[tuple[int, int]] = Counter()
        with_new_line: set[tuple[int, int]] = set()
        async with aclosing(merged(self._generations)) as deltas:
            async for place, delta in deltas:
                at = (place, delta.index)
                predicted[at] += len(delta.tokens or ())
                if "\n" in delta.text:
                    with_new_line.add(at)
                if delta.finish is None or delta.text or delta.tokens:
                    index = place * self._n + delta.index
                    yield _event(self._writer.part(self._generations[place], index, delta, predicted[at]))
                if delta.finish is not None:
                    final = FinishedAnswer.of([delta])
                    ending = self._final(place, delta.index, final, has_new_line=at in with_new_line)
                    receipt = await self._receipt()
                    yield _event(
                        ending if receipt is msgspec.UNSET else msgspec.to_builtins(ending) | {"receipt": receipt}
                    )

    def _final(self, place: int, index: int, answer: FinishedAnswer, *, has_new_line: bool = False) -> Any:
        index += place * self._n
        final = self._writer.final(self._generations[place], index, answer, has_new_line=has_new_line)
        return _chosen(final, self._response_fields) if self._response_fields else final


def _event(content: Any) -> bytes:
    return SSE.event(_encode(content))


def _chosen(answer: NativeCompletion, paths: list[str]) -> dict[str, Any]:
    """Only these fields; `a/b` is the field b of the object a. Missing fields are left out, as in llama-server."""
    whole = msgspec.to_builtins(answer)
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name, msgspec.UNSET) if isinstance(value, dict) else msgspec.UNSET
        if value is not msgspec.UNSET:
            found[path] = value
    return found
