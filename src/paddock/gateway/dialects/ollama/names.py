"""Ollama's names of models, `[HOST/][OWNER/]MODEL[:TAG]`, and which model they mean here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

LATEST: Final = ":latest"
_REGISTRY: Final = ("registry.ollama.ai/", "library/")
_LONGEST: Final = 350
_NAME: Final = re.compile(
    r"(?:[A-Za-z0-9_][\w.-]*(?::[0-9]{1,5})?/)?(?:[A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_][\w.-]*(?::[\w][\w.-]*)?", re.ASCII
)


def canonical(name: str) -> str:
    """The name without what Ollama adds by itself: its registry, `library` and the tag `latest`."""
    for prefix in _REGISTRY:
        name = name.removeprefix(prefix)
    return name.removesuffix(LATEST)


def is_valid(name: str) -> bool:
    """Whether a model can be made with this name."""
    return len(name) <= _LONGEST and _NAME.fullmatch(name) is not None and ".." not in name


def tagged(name: str) -> str:
    """The name as Ollama shows it: always with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def match(name: str, known: Iterable[str]) -> str | None:
    """Which of the known names is meant: the name itself; else, without regard to case, the name or one that has the
    tag as its ending (`MODEL:Q4_0` is `MODEL-Q4_0` or `MODEL.Q4_0`). None if there is none, or more than one.
    """
    known = list(known)
    short = canonical(name).removesuffix(".gguf")
    for exact in (name, short):
        if exact in known:
            return exact
    head, _, tag = short.rpartition(":")
    wanted = {short.lower(), *((f"{head}-{tag}".lower(), f"{head}.{tag}".lower()) if head else ())}
    found = [one for one in known if one.lower() in wanted]
    return found[0] if len(found) == 1 else None
