"""The families of attacks by name. A new file of attacks is added here."""

from __future__ import annotations

from typing import Final

from paddock_lab.abuse import answers, bodies, connections, edge, samplers, schemas, texts
from paddock_lab.abuse.attack import Attack

FAMILIES: Final[dict[str, tuple[Attack, ...]]] = {
    "answers": answers.ATTACKS,
    "bodies": bodies.ATTACKS,
    "connections": connections.ATTACKS,
    "edge": edge.ATTACKS,
    "samplers": samplers.ATTACKS,
    "schemas": schemas.ATTACKS,
    "texts": texts.ATTACKS,
}
