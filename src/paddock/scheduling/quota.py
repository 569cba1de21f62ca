"""Whose prefixes are evicted from host memory: those of the tenant that holds most beyond its share.

The share of each tenant is an equal part for those that are active. One that is alone may hold everything; it gives
back what is beyond its share when others need it. A tenant that has used none of its prefixes while `CLAIM` times the
whole memory was written has no share any more.
"""

from __future__ import annotations

from collections.abc import Collection

CLAIM = 16


def tenant_of(namespace: str) -> str:
    """A tenant has several namespaces: prefixes computed under adapters, or deterministically, are kept apart."""
    return namespace.partition("\0")[0]


class Quota:
    """Sizes are in whatever unit the budget is."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held: dict[str, int] = {}
        self._used_at: dict[str, int] = {}
        self._written = 0

    def held(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def used(self, tenant: str) -> None:
        """It asked for prefixes of its own."""
        if tenant in self._held:
            self._used_at[tenant] = self._written

    def added(self, tenant: str, size: int) -> None:
        self._written += size
        self._held[tenant] = self.held(tenant) + size
        self._used_at[tenant] = self._written

    def freed(self, tenant: str, size: int) -> None:
        self._held[tenant] -= size
        if self._held[tenant] <= 0:
            del self._held[tenant], self._used_at[tenant]

    def resize(self, budget: int) -> None:
        self._budget = budget

    def largest(self, without: Collection[str] = ()) -> str | None:
        """Who holds most, besides those in `without`: it gives something up when the budget has shrunk."""
        return max((tenant for tenant in self._held if tenant not in without), key=self.held, default=None)

    def victim(self, adding: str, size: int, without: Collection[str] = ()) -> str | None:
        """Who has to give something up so that so much of the tenant `adding` can be kept, besides those in `without`,
        who cannot. None: nobody has to, so it cannot be kept.
        """
        others = [tenant for tenant in self._held if tenant != adding]
        idle = [tenant for tenant in others if self._is_idle(tenant)]
        if candidates := [tenant for tenant in idle if tenant not in without]:
            return min(candidates, key=self._used_at.__getitem__)
        share = self._budget / (1 + len(others) - len(idle))
        holding = {**self._held, adding: self.held(adding) + size}
        over = [tenant for tenant in self._held if holding[tenant] > share and tenant not in without]
        return max(over, key=holding.__getitem__, default=None)

    def _is_idle(self, tenant: str) -> bool:
        return self._written - self._used_at[tenant] > CLAIM * self._budget
