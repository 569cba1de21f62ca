"""The lock file: everything a server installs is pinned by hash, in the versions that the tests run with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
PINS = dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==([^\s;\\]+)", LOCK, re.MULTILINE))


def test_every_package_has_hashes_and_none_has_an_index() -> None:
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK)[1:]
    assert len(blocks) == len(PINS) > 30
    for block in blocks:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block
    assert "://" not in LOCK
    assert "index-url" not in LOCK


def test_it_has_the_versions_of_the_tests() -> None:
    tested = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    assert {name: version for name, version in PINS.items() if tested.get(name, version) != version} == {}


def test_it_has_all_that_a_server_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["otel"], *extras["receipts"], *extras["run"]]
    needed = {re.split(r"[<>=\[;]", dependency)[0] for dependency in wanted}
    assert {name.replace("_", "-").lower() for name in needed} <= PINS.keys()


def test_the_bill_of_materials_names_each_of_them(tmp_path: Path) -> None:
    target = tmp_path / "bill.json"
    subprocess.run([sys.executable, str(ROOT / "tools" / "sbom.py"), str(target)], check=True, timeout=60)
    bill = json.loads(target.read_text("utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {(one["name"], one["version"]) for one in bill["components"]} == set(PINS.items())
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(set(references)) == len(references)
    for component in bill["components"]:
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        assert any(said["name"] == "paddock:sha256" for said in component["properties"])
    assert bill["dependencies"][0]["dependsOn"] == references
