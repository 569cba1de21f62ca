"""Context shift: which tokens an answer drops so that it can continue when its context is full."""

from __future__ import annotations

from dataclasses import dataclass

# Tokens that are not kept, whatever the request asks for, so that a shift has something to drop.
_LEAST_UNKEPT = 4


@dataclass(slots=True, frozen=True)
class ContextShift:
    """The rules of one request. The numbers are those that llama-server's rules give."""

    keep: int
    """The first tokens, which are never dropped, as far as that is possible."""
    discard: int = 0
    """How many tokens after them to drop; 0: half."""

    def dropped(self, n_ctx: int) -> range:
        """The places of the tokens to drop when there are `n_ctx` of them. The newest one always stays."""
        keep = max(min(self.keep, n_ctx - _LEAST_UNKEPT), 0)
        computed = n_ctx - 1 - keep
        most = max(computed - 1, 1)
        return range(keep, keep + min(self.discard or max(computed // 2, 1), most))
