"""What axe finds wrong with a page for people who cannot see it well, or use no mouse."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page


def serious_findings(page: Page) -> list[str]:
    violations = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['html']} {node['failureSummary']}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
