"""Ollama's Go templates: they are recognised, not run. Models have Jinja templates of their own."""

from __future__ import annotations

import re
from typing import Final

_GO: Final = re.compile(
    r"\{\{-?\s*(?:\.|\$|end\b|(?:if|range|with|else)\b|-?\s*(?:json|eq|and|or|not|len|slice|index)\s)"
)
_JINJA: Final = re.compile(r"\{%")
# What a template of a family writes, and llama.cpp's name for it. The first that fits counts.
_FAMILIES: Final = (
    (("<|start_header_id|>", "<|eot_id|>"), "llama3"),
    (("<|im_start|>", "<|im_end|>"), "chatml"),
    (("<start_of_turn>", "<end_of_turn>"), "gemma"),
    (("<|user|>", "<|assistant|>", "<|end|>"), "phi3"),
    (("<|user|>", "<|assistant|>", "<|endoftext|>"), "falcon3"),
    (("<|user|>", "<|assistant|>", "</s>"), "zephyr"),
    (("<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"), "command-r"),
    (("<|start_of_role|>", "<|end_of_role|>"), "granite"),
    (("[INST]", "<<SYS>>"), "llama2"),
    (("[INST]", "[/INST]"), "mistral-v1"),
    (("USER:", "ASSISTANT:"), "vicuna"),
    (("### Instruction:", "### Response:"), "deepseek"),
)


def is_go_template(template: str) -> bool:
    """Whether it is a Go template: actions in double braces that Jinja does not know."""
    return _JINJA.search(template) is None and _GO.search(template) is not None


def family_of(template: str) -> str | None:
    """llama.cpp's name of the template that writes the same marks, or None."""
    return next((name for marks, name in _FAMILIES if all(mark in template for mark in marks)), None)
