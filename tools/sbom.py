"""Write the software bill of materials of a server: requirements.lock as CycloneDX JSON.

Usage: python tools/sbom.py [FILE]. The same lock file gives the same bytes.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "dist" / "paddock-llm.cdx.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lock = (_ROOT / "requirements.lock").read_text("utf-8")
    target.write_text(json.dumps(bill(lock, project["name"], project["version"]), indent=2) + "\n", "utf-8")
    print(f"{target}: {len(list(_pins(lock)))} components")


def bill(lock: str, name: str, version: str) -> dict[str, Any]:
    own = _reference(name, version)
    components = [_component(*pin) for pin in _pins(lock)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + lock)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": own, "name": name, "version": version, "purl": own,
                "licenses": [{"license": {"id": "MIT"}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [component["bom-ref"] for component in components]}],
    }  # fmt: skip


def _component(name: str, version: str, marker: str, hashes: list[str]) -> dict[str, Any]:
    """`hashes` are those of all files of this version, one for each platform."""
    reference = _reference(name, version)
    component: dict[str, Any] = {
        "type": "library", "bom-ref": reference, "name": name, "version": version, "purl": reference,
        "properties": [{"name": "paddock:sha256", "value": digest} for digest in hashes],
    }  # fmt: skip
    if marker:
        component["scope"] = "optional"
        component["properties"].append({"name": "paddock:marker", "value": marker})
    if licence := _licence(name, version):
        component["licenses"] = [{"license": {"name": licence}}]
    return component


def _licence(name: str, version: str) -> str:
    """From the installed package, if this version is installed."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    if found.version != version:
        return ""
    said = [found.metadata[key] for key in ("License-Expression", "License") if key in found.metadata]
    return said[0] if said and len(said[0]) < 80 else ""


def _pins(lock: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Name, version, marker and hashes of each package."""
    for block in re.split(r"\n(?=\S)", "\n".join(line for line in lock.splitlines() if not line.startswith("#"))):
        if match := _PIN.match(block.strip().splitlines()[0] if block.strip() else ""):
            yield match[1], match[2], match[3] or "", _HASH.findall(block)


def _reference(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


if __name__ == "__main__":
    main()
