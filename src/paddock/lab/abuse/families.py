"""The families of attacks by name. A new file of attacks is added here."""

from __future__ import annotations

from typing import Final

from paddock.lab.abuse import bodies, connections, schemas
from paddock.lab.abuse.attack import Attack

FAMILIES: Final[dict[str, tuple[Attack, ...]]] = {
    "bodies": bodies.ATTACKS,
    "connections": connections.ATTACKS,
    "schemas": schemas.ATTACKS,
}
