"""Encodes a request for a llama.cpp-compatible server: the route and the body.

`unsupported` finds what a server would ignore before it is sent, so that nothing is dropped silently.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import msgspec

from paddock.errors import PaddockError, UnsupportedParameter
from paddock.types import (
    ChatPrompt,
    Constraint,
    GenerateRequest,
    InfillPrompt,
    MediaFile,
    MediaPrompt,
    MixedPrompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    printed_dates,
)

_CHAT, _COMPLETION, _INFILL = "/v1/chat/completions", "/completion", "/infill"
# Parameters that are encoded separately.
_RENAMED = frozenset({"seed", "n_probs", "logit_bias", "post_sampling_probs", "ignore_eos"})
_SEEDS = 2**32 - 1
"""The number of seeds of llama-server; this value itself requests a random seed."""
_PADDOCK_ONLY = "only Paddock replicas support it, and none is available"


def unsupported(
    request: GenerateRequest, *, paddock: bool, slots: int, deterministic: bool, template: str = ""
) -> PaddockError | None:
    """Why a remote server with this chat template cannot serve this request in full, or None."""
    if request.adapters:
        return UnsupportedParameter("remote replicas do not support adapters", param="lora")
    if request.prompt_probs >= 0:
        return UnsupportedParameter("remote replicas do not support logprobs of the prompt", param="echo")
    if isinstance(request.prompt, ChatPrompt) and request.prompt.template:
        return UnsupportedParameter("remote replicas have their own chat template", param="template")
    if request.receipt:
        if not paddock:
            return UnsupportedParameter(f"receipts: {_PADDOCK_ONLY}", param="receipt")
        if request.n > 1 and not isinstance(request.prompt, ChatPrompt):
            return UnsupportedParameter(
                "remote replicas give a receipt for one answer to a prompt: send one request for each", param="receipt"
            )
    if paddock:
        return None
    if request.constraint is not None and request.constraint.kind == "regex":
        return UnsupportedParameter(f"regular expressions: {_PADDOCK_ONLY}", param=request.constraint.param)
    if deterministic and slots != 1:
        return UnsupportedParameter(
            f"llama-server is deterministic only with one slot (--parallel 1); this replica has {slots}",
            param="deterministic",
        )
    prompt = request.prompt
    if request.special_tokens:
        return UnsupportedParameter(f"special tokens in answers: {_PADDOCK_ONLY}", param="skip_special_tokens")
    if isinstance(prompt, InfillPrompt) and prompt.suffix_first:
        return UnsupportedParameter(f"a suffix before the prefix: {_PADDOCK_ONLY}", param="spm_infill")
    if isinstance(prompt, ChatPrompt):
        if not prompt.parse_reply:
            return UnsupportedParameter(f"replies without parsing: {_PADDOCK_ONLY}", param="skip_chat_parsing")
        if prompt.function:
            return UnsupportedParameter(f"tool_choice with a function name: {_PADDOCK_ONLY}", param="tool_choice")
        if prompt.date and "strftime_now" in template and prompt.date != date.today().isoformat():
            return UnsupportedParameter(f"this template with another date: {_PADDOCK_ONLY}", param="template_date")
        if prompt.ending == "reply" and prompt.messages[-1].get("role") == "assistant":
            return UnsupportedParameter(
                f"a new reply after an assistant message: {_PADDOCK_ONLY}", param="add_generation_prompt"
            )
    return None


def encode_request(
    request: GenerateRequest,
    model: str,
    *,
    paddock: bool,
    n_ctx: int,
    deterministic: bool,
    marker: str = "<__media__>",
) -> tuple[str, dict[str, Any]]:
    """The route and the body, for a server with context `n_ctx`, where `marker` stands for a file in a text. Requests a
    stream that reports the prompt length first and the usage last.
    """
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "return_progress": True,
        **_sampling(request.sampling, paddock=paddock, n_ctx=n_ctx),
        **_generation(request, paddock=paddock, deterministic=deterministic),
    }
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        body |= {"stream_options": {"include_usage": True}, **encode_chat(prompt, paddock=paddock)}
        if request.sampling.n_probs >= 0:
            body |= {"logprobs": True, "top_logprobs": request.sampling.n_probs}
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        if request.n > 1:
            body["n"] = request.n
        return _CHAT, body
    body |= {
        "n_predict": -1 if request.max_tokens is None else request.max_tokens,
        # llama-server reports no logprob of the chosen token with n_probs 0.
        "n_probs": max(request.sampling.n_probs, 1) if request.sampling.n_probs >= 0 else 0,
    }
    if request.n > 1:
        body["n_cmpl"] = request.n
    if request.max_seconds:
        body["t_max_predict_ms"] = max(1, round(1000 * request.max_seconds))
    match prompt:
        case TextPrompt(text):
            body["prompt"] = text
        case TokenPrompt(tokens):
            body["prompt"] = tokens
        case MixedPrompt(parts):
            body["prompt"] = parts
        case MediaPrompt(texts, media):
            body["prompt"] = {
                "prompt_string": marker.join(texts),
                "multimodal_data": [_base64(file) for file in media],
            }
        case InfillPrompt():
            extra = [{"filename": name, "text": text} for name, text in prompt.extra]
            body |= {"input_prefix": prompt.prefix, "input_suffix": prompt.suffix, "input_extra": extra}
            if prompt.suffix_first:
                body["spm_infill"] = True
            return _INFILL, body
    return _COMPLETION, body


def _sampling(params: SamplingParams, *, paddock: bool, n_ctx: int) -> dict[str, Any]:
    """All parameters, so that the server's own defaults do not matter."""
    body = {name: getattr(params, name) for name in params.__struct_fields__ if name not in _RENAMED}
    if "adaptive_p" not in params.samplers:  # older servers do not know it
        del body["adaptive_target"], body["adaptive_decay"]
    for name in ("repeat_last_n", "dry_penalty_last_n"):
        if body[name] == -1:  # the whole context; not every llama-server accepts -1
            body[name] = n_ctx
    if params.seed is not None:
        body["seed"] = params.seed if paddock else params.seed % _SEEDS
    if params.logit_bias:
        never = float("-inf")
        body["logit_bias"] = [[token, False if bias == never else bias] for token, bias in params.logit_bias]
    if params.ignore_eos:
        body["ignore_eos"] = True
    if params.post_sampling_probs:
        body["post_sampling_probs"] = True
    return body


def _generation(request: GenerateRequest, *, paddock: bool, deterministic: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        # In llama-server, a reused prompt changes the last bits of the logits.
        "cache_prompt": request.cache_prompt and (paddock or not deterministic),
        "stop": list(request.stop),
    }
    if deterministic and paddock:
        body["deterministic"] = True
    if request.receipt:
        body["receipt"] = True
    if request.constraint is not None:
        body |= _constraint(request.constraint)
    if request.id_slot is not None:
        body["id_slot"] = request.id_slot
    for name in ("n_keep", "n_discard"):
        if value := getattr(request, name):
            body[name] = value
    if request.special_tokens:
        body["skip_special_tokens"] = False
    if request.min_indent:
        body["n_indent"] = request.min_indent
    for name in ("return_tokens", "timings_per_token"):
        if getattr(request, name) and not (name == "return_tokens" and isinstance(request.prompt, ChatPrompt)):
            body[name] = True
    for name in ("type", "n_max", "n_min", "p_min", "ngram_size_m"):
        if (value := getattr(request, f"draft_{name}")) is not None:
            body[f"speculative.{name}"] = value
    return body


def _constraint(constraint: Constraint) -> dict[str, Any]:
    match constraint.kind:
        case "json_schema":
            return {"json_schema": msgspec.json.decode(constraint.source)}
        case "regex":
            return {"regex": constraint.source}
        case _:
            return {"grammar": constraint.source}


def encode_chat(prompt: ChatPrompt, *, paddock: bool) -> dict[str, Any]:
    """The fields of a chat prompt."""
    files = iter(prompt.media)
    messages = [_with_files(message, files) for message in prompt.messages] if prompt.media else prompt.messages
    body: dict[str, Any] = {"messages": [_message(message) for message in messages]}
    if prompt.tools:
        body["tools"] = [{"type": "function", "function": msgspec.to_builtins(tool)} for tool in prompt.tools]
        body["parallel_tool_calls"] = prompt.parallel_calls
        if prompt.function:
            body["tool_choice"] = {"type": "function", "function": {"name": prompt.function}}
        elif prompt.must_call:
            body["tool_choice"] = "required"
    match prompt.ending:
        case "continue":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        case "none":
            body["add_generation_prompt"] = False
        case "reply" if prompt.messages[-1].get("role") == "assistant":
            body["add_generation_prompt"] = True
    options = dict(prompt.template_options)
    if prompt.thinking is not None:
        options["enable_thinking"] = prompt.thinking
    if prompt.date and not paddock:
        options = printed_dates(datetime.fromisoformat(prompt.date)) | options
    if options:
        body["chat_template_kwargs"] = options
    if prompt.thinking_budget is not None:
        body["thinking_budget_tokens"] = prompt.thinking_budget
    if prompt.budget_message:
        body["reasoning_budget_message"] = prompt.budget_message
    if not prompt.parse_reply:
        body["skip_chat_parsing"] = True
    if not prompt.split_reasoning:
        body["reasoning_format"] = "none"
    if prompt.date and paddock:
        body["template_date"] = prompt.date
    return body


def _with_files(message: dict[str, Any], files: Iterator[MediaFile]) -> dict[str, Any]:
    """The message with its images and audio in the place of the parts that stand for them."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return message | {"content": [_file(next(files)) if part["type"] == "media" else part for part in content]}


def _file(file: MediaFile) -> dict[str, Any]:
    data = _base64(file)
    if file.kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": data}}
    return {"type": "image_url", "image_url": {"url": f"data:application/octet-stream;base64,{data}"}}


def _base64(file: MediaFile) -> str:
    return file.data if file.content is None else base64.b64encode(file.content).decode()


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Templates get the arguments of earlier calls as objects; over HTTP they are strings."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return message | {
        "tool_calls": [
            call
            | {
                "function": call["function"]
                | {"arguments": msgspec.json.encode(call["function"]["arguments"]).decode()}
            }
            for call in calls
        ]
    }
