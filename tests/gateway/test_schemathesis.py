"""schemathesis on all routes of `/openapi.json`: generated requests get declared answers only.

It reads the routes from the server, so that a new one is tried without a word here. `make fuzz` tries for longer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import Server
from tests.tiers import full

pytestmark = full

EXAMPLES = os.environ.get("PADDOCK_FUZZ_EXAMPLES", "15")
# Accepting invalid requests is not checked: unknown fields are ignored by design.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method,allow_header_conformance"
)
VECTORS = "/(embeddings?|rerank(ing)?)$"
# Endless streams, and routes that unload the model.
ELSEWHERE = "^/(live|models/sse|models/unload|admin/unload)$"
# Routes with the same schema as another route get generated requests only, not each value of each field again.
ALIKE = (
    "^/(completions|apply-template|chat/completions|responses|messages|(v1/)?messages/count_tokens"
    "|(v1/)?responses/input_tokens|(v1/)?chat/completions/input_tokens)$"
)
CONFIG = f"""
[phases]
examples.enabled = false
stateful.enabled = false
[[operations]]
include-path-regex = "{ALIKE}"
phases.coverage.enabled = {str("PADDOCK_FUZZ_EXAMPLES" in os.environ).lower()}
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("flags", "which", "at_least"),
    [
        ([], ["--exclude-path-regex", f"{VECTORS}|{ELSEWHERE}"], 2000),
        (["--embedding"], ["--include-path-regex", "/embeddings?$"], 100),
        (["--reranking"], ["--include-path-regex", "/rerank(ing)?$"], 100),
    ],
    ids=["text", "embedding", "reranking"],
)
def test_every_answer_is_declared(flags: list[str], which: list[str], at_least: int, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with Server("-m", "fake:", "--props", "--slot-save-path", str(tmp_path), *flags) as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", *which),
                *("--seed", "1", "--max-examples", EXAMPLES, "--checks", CHECKS),
                *("--generation-database", "none", "--suppress-health-check", "all", "--continue-on-failure"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert len(server.workers()) == 1, "the worker has not crashed"
    tried = re.search(r"(\d+) generated", done.stdout)
    assert tried is not None
    assert int(tried[1]) > at_least
