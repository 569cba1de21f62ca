"""How much context a request gets."""

from __future__ import annotations

from paddock.types import EngineOptions


def clamped_context(options: EngineOptions, trained: int, *, unified: bool) -> str:
    """What the log says where the options ask for more tokens in a request than the model was trained for; else
    empty. llama-server limits a request in the same way.
    """
    wanted = options.n_ctx if unified else options.n_ctx // options.parallel
    if wanted <= trained:
        return ""
    return (
        f"n_ctx {options.n_ctx} allows {wanted} tokens in a request, but the model was trained for {trained}: "
        f"a request gets at most {trained}"
    )
