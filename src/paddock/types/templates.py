"""What is known about chat templates without rendering one."""

from __future__ import annotations

from datetime import datetime

DEFAULT_TEMPLATE = "chatml"
"""The template of a model without one. It is rendered by Jinja."""
_NAMES = """
bailing bailing-think bailing2 chatglm3 chatglm4 chatml command-r deepseek deepseek-ocr deepseek2 deepseek3
exaone-moe exaone3 exaone4 falcon3 gemma gigachat glmedge gpt-oss granite granite-4.0 granite-4.1 grok-2
hunyuan-dense hunyuan-moe hunyuan-vl kimi-k2 llama2 llama2-sys llama2-sys-bos llama2-sys-strip llama3 llama4
megrez minicpm mistral-v1 mistral-v3 mistral-v3-tekken mistral-v7 mistral-v7-tekken monarch openchat orion
pangu-embedded phi3 phi4 rwkv-world seed_oss smolvlm solar-open vicuna vicuna-orca yandex zephyr
"""
BUILTIN_TEMPLATES = frozenset(_NAMES.split())
"""The names of those that libllama renders without Jinja."""


def check_template(text: str) -> str:
    """A Jinja template, or the name of a built-in one. Raises `ValueError` for anything else."""
    if "{" not in text and text not in BUILTIN_TEMPLATES:
        names = ", ".join(sorted(BUILTIN_TEMPLATES))
        raise ValueError(f"{text[:80]!r} is not the text of a Jinja template, and not one of the names {names}")
    return text


def printed_dates(now: datetime) -> dict[str, str]:
    """Variables for templates that print a date, as llama-server has them. Llama 3 prints one of 2024 without."""
    return {"datetime": now.strftime("%b %d %Y"), "date_string": now.strftime("%d %b %Y")}
