"""llama-cpp-python in this process: the high-level `Llama`, which caches its last prompt."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paddock_lab.client import ChatFailed
from paddock_lab.prefix_cache.backends import Backend, Reply
from paddock_lab.words import Message

Complete = Callable[[list[Message]], dict[str, Any]]


def open_binding(model: Path, *, context: int) -> list[Backend]:
    """The same `Llama` in two ways: with its own chat template code, and with a prompt that is rendered here."""
    llm = llama_cpp.Llama(model_path=str(model), n_ctx=context, n_gpu_layers=-1, verbose=False)
    found: list[Backend] = [BindingBackend("binding", llm, "create_chat_completion", _by_binding(llm))]
    if template := llm.metadata.get("tokenizer.chat_template"):
        found.append(
            BindingBackend(
                "binding-jinja", llm, "a prompt rendered with the model's template", _by_template(llm, template)
            )
        )
    return found


class BindingBackend:
    """Its time to the first token is the time of a whole call for one token."""

    def __init__(self, name: str, llm: llama_cpp.Llama, way: str, complete: Complete) -> None:
        self.name = name
        self.about = f"llama-cpp-python {llama_cpp.__version__} in the lab's own process: {way}"
        self.bits_per_weight: float | None = (
            8 * llama_cpp.llama_model_size(llm.model) / llama_cpp.llama_model_n_params(llm.model)
        )
        self.notes: list[str] = []
        self._llm, self._complete = llm, complete

    def ask(self, messages: list[Message], max_tokens: int) -> Reply:
        known = self._llm.input_ids[: self._llm.n_tokens].copy()
        begun = time.perf_counter()
        try:
            usage = self._complete(messages)["usage"]
        except (ValueError, RuntimeError) as failure:
            raise ChatFailed(str(failure)) from failure
        took = time.perf_counter() - begun
        prompt = self._llm.input_ids[: usage["prompt_tokens"]]
        size = min(len(known), len(prompt))
        differs = np.flatnonzero(known[:size] != prompt[:size])
        # At least one token is always computed.
        same = min(int(differs[0]) if len(differs) else size, len(prompt) - 1)
        return Reply(took, usage["prompt_tokens"], same, usage["completion_tokens"])

    def cached_prompt_tokens(self) -> int | None:
        return int(self._llm.n_tokens)

    def count_tokens(self, text: str) -> int | None:
        return len(self._llm.tokenize(text.encode(), add_bos=False))


def _by_binding(llm: llama_cpp.Llama) -> Complete:
    def complete(messages: list[Message]) -> dict[str, Any]:
        answer: Any = llm.create_chat_completion(messages=messages, max_tokens=1, temperature=0.0)
        return dict(answer)

    return complete


def _by_template(llm: llama_cpp.Llama, template: str) -> Complete:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    rendering = environment.from_string(template)
    begin, end = (_piece(llm, token) for token in (llm.token_bos(), llm.token_eos()))

    def complete(messages: list[Message]) -> dict[str, Any]:
        prompt = rendering.render(messages=messages, add_generation_prompt=True, bos_token=begin, eos_token=end)
        # As tokens, because the binding would add a second BOS token to a text.
        tokens = llm.tokenize(prompt.encode(), add_bos=False, special=True)
        answer: Any = llm.create_completion(tokens, max_tokens=1, temperature=0.0)
        return dict(answer)

    return complete


def _piece(llm: llama_cpp.Llama, token: int) -> str:
    return llm.detokenize([token], special=True).decode("utf-8", "replace") if token >= 0 else ""
