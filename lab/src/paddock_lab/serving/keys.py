"""Two API keys, for servers that know any: those without do not mind being sent one."""

from __future__ import annotations

import json
from pathlib import Path

USUAL_KEY, OTHER_KEY = "sk-lab-usual", "sk-lab-other"
"""Everything is asked with the first one, unless two are to be told apart."""


def write_keys(path: Path) -> None:
    """A configuration with the keys, which may do everything."""
    keys = {name: {"key": key, "admin": True} for name, key in (("usual", USUAL_KEY), ("other", OTHER_KEY))}
    path.write_text(json.dumps({"server": {"keys": keys}}))
