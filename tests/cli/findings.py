"""Findings of `paddock doctor`, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from paddock.cli.doctor.finding import Finding, Level


def worst(findings: Iterable[Finding]) -> tuple[Level, str]:
    """The worst level, and all texts."""
    found = list(findings)
    level = max((finding.level for finding in found), key=["ok", "warning", "problem"].index)
    assert all(finding.cure for finding in found if finding.level != "ok"), "every warning and problem has a cure"
    return level, " ".join(f"{finding.text} {finding.cure}" for finding in found)
