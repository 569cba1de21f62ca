"""llama-server's flags that set a request field for all requests that leave it out: `model_manager.defaults`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from paddock.config import on_off_or_auto
from paddock.types import sampler_letter, sampler_named

PARAMETER = "default__"
"""The prefix of the names of these options."""


@dataclass(frozen=True, slots=True)
class RequestDefault:
    """Flags that set one field. `read` turns the argument into the field's value; None: the flag has no argument."""

    flags: str
    field: str
    read: Callable[[str], Any] | None
    help: str
    variable: str = ""
    is_list: bool = False
    """The flag can be repeated; its values become one list."""
    value: bool = True
    """The value of a flag without an argument."""


def _samplers(text: str) -> list[str]:
    return [sampler_named(name.strip()) for name in text.split(";") if name.strip()]


def _sampler_letters(text: str) -> list[str]:
    return [sampler_letter(letter) for letter in text]


def _bias(text: str) -> list[float | int | bool]:
    match = re.fullmatch(r"\s*(\d+)\s*([+-])\s*(\S+)\s*", text)
    if match is None:
        raise ValueError("expected a token id, + or -, and a bias, such as 15043+1")
    token, sign, size = match.groups()
    if size.lower() in ("inf", "infinity") and sign == "-":
        return [int(token), False]
    return [int(token), float(sign + size)]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected JSON: {error}") from None


def _json_object(text: str) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def _file_of(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def from_file(path: str) -> Any:
        try:
            return read(Path(path).expanduser().read_text("utf-8"))
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text") from None

    return from_file


def _thinking(text: str) -> dict[str, Any]:
    return {"on": {"enable_thinking": True}, "off": {"enable_thinking": False}, "auto": {}}[on_off_or_auto(text)]


def _effort(text: str) -> dict[str, Any]:
    return {} if text == "default" else {"reasoning_effort": text}


DEFAULTS: tuple[RequestDefault, ...] = (
    RequestDefault(
        "-n --predict --n-predict", "n_predict", int, "The most tokens of an answer.", "LLAMA_ARG_N_PREDICT"
    ),
    RequestDefault("--keep", "n_keep", int, "Prompt tokens that a context shift keeps; -1: all."),
    RequestDefault("--temp --temperature", "temperature", float, "The temperature.", "LLAMA_ARG_TEMPERATURE"),
    RequestDefault("--top-k", "top_k", int, "Top-k sampling; 0: off.", "LLAMA_ARG_TOP_K"),
    RequestDefault("--top-p", "top_p", float, "Top-p sampling; 1: off.", "LLAMA_ARG_TOP_P"),
    RequestDefault("--min-p", "min_p", float, "Min-p sampling; 0: off.", "LLAMA_ARG_MIN_P"),
    RequestDefault("--top-nsigma --top-n-sigma", "top_n_sigma", float, "Top-n-sigma sampling; -1: off."),
    RequestDefault("--typical --typical-p", "typical_p", float, "Locally typical sampling; 1: off."),
    RequestDefault("--xtc-probability", "xtc_probability", float, "The probability of XTC; 0: off."),
    RequestDefault("--xtc-threshold", "xtc_threshold", float, "The threshold of XTC."),
    RequestDefault("--repeat-last-n", "repeat_last_n", int, "The last tokens that penalties consider; -1: all."),
    RequestDefault("--repeat-penalty", "repeat_penalty", float, "The repeat penalty.", "LLAMA_ARG_REPEAT_PENALTY"),
    RequestDefault(
        "--presence-penalty", "presence_penalty", float, "The presence penalty.", "LLAMA_ARG_PRESENCE_PENALTY"
    ),
    RequestDefault(
        "--frequency-penalty", "frequency_penalty", float, "The frequency penalty.", "LLAMA_ARG_FREQUENCY_PENALTY"
    ),
    RequestDefault("--dry-multiplier", "dry_multiplier", float, "The multiplier of DRY; 0: off."),
    RequestDefault("--dry-base", "dry_base", float, "The base of DRY."),
    RequestDefault("--dry-allowed-length", "dry_allowed_length", int, "The length that DRY allows."),
    RequestDefault("--dry-penalty-last-n", "dry_penalty_last_n", int, "The last tokens that DRY considers."),
    RequestDefault(
        "--dry-sequence-breaker", "dry_sequence_breakers", str, "A breaker of DRY; `none` for none.", is_list=True
    ),
    RequestDefault("--dynatemp-range", "dynatemp_range", float, "The range of a dynamic temperature."),
    RequestDefault("--dynatemp-exp", "dynatemp_exponent", float, "The exponent of a dynamic temperature."),
    RequestDefault("--mirostat", "mirostat", int, "Mirostat: 0 (off), 1 or 2."),
    RequestDefault("--mirostat-ent", "mirostat_tau", float, "Mirostat's target entropy."),
    RequestDefault("--mirostat-lr", "mirostat_eta", float, "Mirostat's learning rate."),
    RequestDefault("--adaptive-target", "adaptive_target", float, "The target of adaptive-p; negative: off."),
    RequestDefault("--adaptive-decay", "adaptive_decay", float, "The decay of adaptive-p's average."),
    RequestDefault("-s --seed", "seed", int, "The seed; -1: a random one."),
    RequestDefault("--samplers", "samplers", _samplers, "The samplers in their order, separated by `;`."),
    RequestDefault("--sampler-seq --sampling-seq", "samplers", _sampler_letters, "The same, a letter each."),
    RequestDefault("-l --logit-bias", "logit_bias", _bias, "A bias, such as 15043+1.", is_list=True),
    RequestDefault("--ignore-eos", "ignore_eos", None, "Continue after the end-of-text token."),
    RequestDefault("-r --reverse-prompt", "stop", str, "A text at which answers stop.", is_list=True),
    RequestDefault("--grammar", "grammar", str, "A GBNF grammar."),
    RequestDefault("--grammar-file", "grammar", _file_of(str), "The file of a GBNF grammar."),
    RequestDefault("-j --json-schema", "json_schema", _json, "A JSON schema."),
    RequestDefault("-jf --json-schema-file", "json_schema", _file_of(_json), "The file of a JSON schema."),
    RequestDefault("--reasoning-format", "reasoning_format", str, "Where reasoning goes.", "LLAMA_ARG_THINK"),
    RequestDefault(
        "--reasoning-budget", "thinking_budget_tokens", int, "The most tokens of reasoning.", "LLAMA_ARG_THINK_BUDGET"
    ),
    RequestDefault(
        "--reasoning-budget-message",
        "reasoning_budget_message",
        str,
        "The end of reasoning that the budget cuts.",
        "LLAMA_ARG_THINK_BUDGET_MESSAGE",
    ),
    RequestDefault(
        "--prefill-assistant",
        "prefill_assistant",
        None,
        "Continue a last message of the assistant.",
        "LLAMA_ARG_PREFILL_ASSISTANT",
    ),
    RequestDefault(
        "--no-prefill-assistant", "prefill_assistant", None, "Reply to a last message of the assistant.", value=False
    ),
    RequestDefault(
        "--skip-chat-parsing",
        "skip_chat_parsing",
        None,
        "The whole reply is content, with reasoning and calls as text.",
        "LLAMA_ARG_SKIP_CHAT_PARSING",
    ),
    RequestDefault("--no-skip-chat-parsing", "skip_chat_parsing", None, "Separate reasoning and calls.", value=False),
    RequestDefault("-sp --special", "skip_special_tokens", None, "Show special tokens in answers.", value=False),
    RequestDefault("--spm-infill", "spm_infill", None, "Infill prompts have the order suffix, prefix, middle."),
    RequestDefault(
        "--chat-template-kwargs",
        "chat_template_kwargs",
        _json_object,
        "Values for the chat template, as JSON.",
        "LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
    ),
    RequestDefault("-rea --reasoning", "chat_template_kwargs", _thinking, "on, off or auto.", "LLAMA_ARG_REASONING"),
    RequestDefault(
        "--reasoning-effort", "chat_template_kwargs", _effort, "Such as low or high.", "LLAMA_ARG_REASONING_EFFORT"
    ),
    RequestDefault(
        "--reasoning-preserve",
        "preserve_reasoning",
        None,
        "Show the model the reasoning of earlier turns, if the template can.",
        "LLAMA_ARG_REASONING_PRESERVE",
    ),
    RequestDefault(
        "--no-reasoning-preserve",
        "preserve_reasoning",
        None,
        "Do not show the model the reasoning of earlier turns.",
        value=False,
    ),
    RequestDefault("--no-cache-prompt", "cache_prompt", None, "Do not reuse cached prefixes.", value=False),
    RequestDefault(
        "--sse-ping-interval", "sse_ping_interval", int, "Seconds between pings.", "LLAMA_ARG_SSE_PING_INTERVAL"
    ),
    RequestDefault("--embd-normalize", "embd_normalize", int, "How embeddings are normalized."),
)


def default_options() -> list[click.Option]:
    return [_option(default, number) for number, default in enumerate(DEFAULTS)]


def given_defaults(params: dict[str, Any]) -> dict[str, Any]:
    """The fields that the command line sets. `params` are click's values, in their order on the command line."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if not name.startswith(PARAMETER) or value in (None, ()):
            continue
        default = DEFAULTS[int(name.removeprefix(PARAMETER))]
        if default.is_list:
            value = [] if "none" in value and default.field == "dry_sequence_breakers" else list(value)
        if isinstance(value, dict) and default.field in found and default.field != "json_schema":
            value = found[default.field] | value
        found[default.field] = value
    return found


def _option(default: RequestDefault, number: int) -> click.Option:
    names = [*default.flags.split(), f"{PARAMETER}{number}"]
    text = f"{default.help} For requests without {default.field}."
    if default.read is None:
        return click.Option(names, flag_value=default.value, default=None, help=text)
    return click.Option(
        names, multiple=default.is_list, callback=_reading(default.read), metavar="VALUE", default=None, help=text
    )


def _reading(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(_ctx: click.Context, param: click.Parameter, value: str | Sequence[str] | None) -> Any:
        try:
            if value is None:
                return None
            return read(value) if isinstance(value, str) else tuple(map(read, value))
        except ValueError as error:
            raise click.BadParameter(str(error), param=param) from None

    return callback
