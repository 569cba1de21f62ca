"""One prompt to several models and settings at once, and one of the answers becomes a version."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.page.axe import serious_findings
from tests.page.chatting import answered, ask, text_of
from tests.server import Server
from tests.tiers import full

pytestmark = full


def test_answers_beside_each_other_and_one_is_kept(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: grass and hay")
    answered(page).get_by_role("button", name="Compare side by side").click()
    dialog = page.get_by_role("dialog", name="Side by side")
    dialog.get_by_role("button", name="Add column").click()
    columns = dialog.get_by_role("region", name=re.compile(r"Column \d"))
    expect(columns).to_have_count(3)
    columns.nth(1).get_by_role("textbox", name="Temperature").fill("0.5")
    columns.nth(1).get_by_role("textbox", name="Seed").fill("7")
    dialog.get_by_role("checkbox", name="Deterministic").check()
    bodies = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if "completions" in request.url else None)
    dialog.get_by_role("button", name="Run").click()
    for number in range(3):
        expect(columns.nth(number)).to_contain_text("grass and hay")
        expect(columns.nth(number)).to_have_attribute("aria-busy", "false")
        expect(columns.nth(number)).to_contain_text(re.compile(r"prompt \d+ \(\d+ cached\).* of memory"))
    assert [body.get("temperature") for body in bodies if body] == [None, 0.5, None]
    assert [body["seed"] for body in bodies if body] == [0, 7, 0]
    assert all(body["deterministic"] for body in bodies if body)
    dialog.get_by_role("checkbox", name="Show differences").check()
    expect(columns.nth(2)).to_contain_text("Identical to the first.")
    assert serious_findings(page) == []

    columns.nth(1).get_by_role("button", name="Keep this one").click()
    expect(dialog).to_have_count(0)
    kept = answered(page)
    expect(text_of(kept)).to_have_text("grass and hay")
    expect(kept).to_contain_text("2/2")
