"""What the workers of a model keep in their caches."""

from __future__ import annotations

from collections.abc import Iterable

from paddock.types import TenantCache


def merged_contents(parts: Iterable[Iterable[TenantCache]]) -> list[TenantCache]:
    """The sums over several workers."""
    found: dict[str, TenantCache] = {}
    for one in (one for part in parts for one in part):
        before = found.get(one.tenant, TenantCache(one.tenant))
        found[one.tenant] = TenantCache(
            one.tenant,
            before.cells + one.cells,
            before.cell_bytes + one.cell_bytes,
            before.host + one.host,
            before.host_bytes + one.host_bytes,
        )
    return [found[tenant] for tenant in sorted(found)]
