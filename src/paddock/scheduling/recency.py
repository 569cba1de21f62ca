"""Nodes in the order of their last use, over all and within each tenant."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from paddock.scheduling.quota import tenant_of


class Owned(Protocol):
    @property
    def namespace(self) -> str: ...


N = TypeVar("N", bound=Owned)


class Recency(Generic[N]):
    def __init__(self) -> None:
        self._all: OrderedDict[N, None] = OrderedDict()
        self._of_tenant: dict[str, OrderedDict[N, None]] = {}

    def __contains__(self, node: N) -> bool:
        return node in self._all

    def __reversed__(self) -> Iterator[N]:
        """The most recently used first."""
        return reversed(self._all)

    def use(self, node: N) -> None:
        """It is the most recently used one now, whether it was known or not."""
        for order in (self._all, self._of_tenant.setdefault(tenant_of(node.namespace), OrderedDict())):
            order[node] = None
            order.move_to_end(node)

    def put_off(self, node: N) -> None:
        """Do not look at it again before the others of its tenant."""
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
