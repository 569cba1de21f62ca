"""Whose prefixes are evicted from host memory: those of the tenant that is furthest over its share.

Active tenants have equal shares. A tenant that is alone may use the whole budget, and gives back what is over its share
when others need it. A tenant that has used none of its prefixes while `IDLE_AFTER` times the budget was written has no
share.
"""

from __future__ import annotations

from collections.abc import Collection

IDLE_AFTER = 16


def tenant_of(namespace: str) -> str:
    """A tenant has several namespaces: adapters and deterministic requests have their own."""
    return namespace.partition("\0")[0]


class Quota:
    """Counts what each tenant stores. Sizes are in the unit of the budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.total = 0
        self.reserved = 0
        """The size of the buffer for copies, which belongs to no tenant."""
        self.aside = 0
        """What is on its way to or from a disk, over the room that is kept for it."""
        self._held: dict[str, int] = {}
        self._used_at: dict[str, int] = {}
        self._written = 0

    def tenants(self) -> list[str]:
        """Those that store something."""
        return list(self._held)

    def held(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def fits(self, size: int) -> bool:
        """Whether so much more fits without evicting anything."""
        return self.total + self.reserved + self.aside + size <= self.budget

    def touch(self, tenant: str) -> None:
        """The tenant looked up prefixes."""
        if tenant in self._held:
            self._used_at[tenant] = self._written

    def add(self, tenant: str, size: int) -> None:
        self.total += size
        self._written += size
        self._held[tenant] = self.held(tenant) + size
        self._used_at[tenant] = self._written

    def remove(self, tenant: str, size: int) -> None:
        self.total -= size
        self._held[tenant] -= size
        if self._held[tenant] <= 0:
            del self._held[tenant], self._used_at[tenant]

    def sum_of_tenants(self) -> int:
        return sum(self._held.values())

    def largest(self, without: Collection[str] = ()) -> str | None:
        """The tenant that stores most, except those in `without`."""
        return max((tenant for tenant in self._held if tenant not in without), key=self.held, default=None)

    def victim(self, adding: str, size: int, without: Collection[str] = ()) -> str | None:
        """The tenant to evict from before `adding` stores `size` more, except those in `without`. None: no tenant is
        over its share, so it cannot be stored.
        """
        others = [tenant for tenant in self._held if tenant != adding]
        idle = [tenant for tenant in others if self._is_idle(tenant)]
        if candidates := [tenant for tenant in idle if tenant not in without]:
            return min(candidates, key=self._used_at.__getitem__)
        share = max(self.budget - self.reserved - self.aside, 0) / (1 + len(others) - len(idle))
        holding = {**self._held, adding: self.held(adding) + size}
        over = [tenant for tenant in self._held if holding[tenant] > share and tenant not in without]
        return max(over, key=holding.__getitem__, default=None)

    def _is_idle(self, tenant: str) -> bool:
        return self._written - self._used_at[tenant] > IDLE_AFTER * self.budget
