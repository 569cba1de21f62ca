"""Requests with odd values, for comparisons with llama-server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CHAT = "/v1/chat/completions"
_ANY_NUMBER: dict[str, list[Any]] = {
    "temperature": [-1, True],
    "top_p": [-0.5, 1.5],
    "top_k": [-5, 1.5, 10**12],
    "min_p": [2, -1],
    "typical_p": [3],
    "repeat_penalty": [1000],
    "presence_penalty": [500],
    "frequency_penalty": [-500],
    "dry_base": [0.5],
    "dry_multiplier": [-1],
    "mirostat": [3, -1],
    "mirostat_tau": [-1],
    "xtc_probability": [2],
    "xtc_threshold": [2],
    "dynatemp_range": [-1],
    "seed": [1.5],
    "n_predict": [1.5],
    "n_probs": [-1, 5000],
    "t_max_predict_ms": [-1],
    "thinking_budget_tokens": [-5],
    "id_slot": [-2],
}
_ANOTHER_TYPE: dict[str, list[Any]] = {
    "samplers": [["nothing"]],
    "logit_bias": [[[1]], "x"],
    "stop": [5],
    "grammar": [5],
    "response_format": ["json"],
    "tool_choice": [5],
    "chat_template_kwargs": ["x"],
    "parallel_tool_calls": ["x"],
    "stream_options": ["x"],
    "response_fields": ["x", [1]],
    "add_generation_prompt": ["x"],
    "continue_final_message": [5],
}
_OF_OTHERS: dict[str, list[Any]] = {
    "foo": [1],
    "best_of": [2],
    "suffix": ["x"],
    "echo": [True],
    "guided_json": [{}],
    "min_tokens": [2],
    "options": [{"num_ctx": 1}],
    "format": ["json"],
    "repetition_penalty": [1.2],
    "generation_prompt": ["x"],
    "t_max_prompt_ms": [5],
    "prompt_logprobs": [1],
    "bad_words": [["a"]],
    "stop_token_ids": [[1]],
    "skip_special_tokens": [False],
    "use_beam_search": [True],
    "length_penalty": [2],
    "include_stop_str_in_output": [True],
}
ODD_FIELDS = _ANY_NUMBER | _ANOTHER_TYPE | _OF_OTHERS


def odd_requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Paths and bodies that llama-server answers with 200."""
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
        "/completion": {"prompt": "hi", "max_tokens": 2},
    }
    for name, values in ODD_FIELDS.items():
        for value in values:
            for path, body in bodies.items():
                yield path, body | {name: value}
    yield "/completion", {"prompt": "hi", "n_predict": 2, "n": 2}
    yield "/completion", {"prompt": "hi", "n_predict": 2, "logprobs": 3}
    yield "/tokenize", {}
    yield "/tokenize", {"content": "a", "add_special": "x", "with_pieces": 5}
    yield "/detokenize", {}
    yield "/detokenize", {"tokens": []}
    yield "/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "stop_sequences": ["a"]}
    yield "/v1/streams/lookup", {"conversation_ids": []}
