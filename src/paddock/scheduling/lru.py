"""Nodes in order of their last use, over all tenants and for each tenant."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic

from paddock.scheduling.quota import tenant_of
from paddock.scheduling.radix_tree import N


class LruOrder(Generic[N]):
    def __init__(self) -> None:
        self._all: OrderedDict[N, None] = OrderedDict()
        self._of_tenant: dict[str, OrderedDict[N, None]] = {}

    def __contains__(self, node: N) -> bool:
        return node in self._all

    def __reversed__(self) -> Iterator[N]:
        """The most recently used node first."""
        return reversed(self._all)

    def touch(self, node: N) -> None:
        """Add a node, or mark it as the most recently used."""
        for order in (self._all, self._of_tenant.setdefault(tenant_of(node.namespace), OrderedDict())):
            order[node] = None
            order.move_to_end(node)

    def skip(self, node: N) -> None:
        """Move a node behind the others of its tenant in the eviction order, because it is in use."""
        self._of_tenant[tenant_of(node.namespace)].move_to_end(node)

    def remove(self, node: N) -> None:
        tenant = tenant_of(node.namespace)
        del self._all[node], self._of_tenant[tenant][node]
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]

    def count(self, tenant: str) -> int:
        return len(self._of_tenant.get(tenant, ()))

    def oldest(self, tenant: str) -> N:
        return next(iter(self._of_tenant[tenant]))
