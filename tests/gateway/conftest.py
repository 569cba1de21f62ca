from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.key_config import KeyConfig


@pytest.fixture
def config(tmp_path: Path) -> KeyConfig:
    """A configuration that a test may change before it starts the server."""
    return KeyConfig(tmp_path)
