"""The tool that writes files with random weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.server import Server

TOOL = Path(__file__).parents[2] / "tools" / "random_model.py"


def test_a_file_with_random_weights_is_served(tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    subprocess.run([sys.executable, str(TOOL), "tiny", str(path)], check=True, timeout=100)
    with Server("-m", str(path), "-c", "512") as server:
        text = "Straße, 東京"
        found = server.client.post("/tokenize", json={"content": text}).json()["tokens"]
        assert len(found) == len(text.encode())
        assert server.client.post("/detokenize", json={"tokens": found}).json()["content"] == text
        answer = server.client.post("/completion", json={"prompt": text, "n_predict": 4, "ignore_eos": True}).json()
        assert answer["tokens_predicted"] == 4
