"""Why an answer took as long as it did: the dialog behind its statistics, and the way to the prefix tree."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.page.axe import serious_findings
from tests.page.chatting import answered, ask
from tests.server import Server
from tests.tiers import full

pytestmark = full


def test_what_the_time_of_an_answer_was_spent_on(page: Page, slow_server: Server) -> None:
    page.goto(slow_server.url)
    for number in (1, 2):
        ask(page, "say: a foal is asleep")
        answer = answered(page, number)
    answer.get_by_role("button", name=re.compile("first token")).click()
    dialog = page.get_by_role("dialog", name="Why did this take so long?")
    expect(dialog).to_contain_text("Most of it was spent generating.")
    decode = dialog.get_by_role("row", name=re.compile("Decode"))
    expect(decode).to_have_text(re.compile(r"\d+%$"))
    # The second prompt goes on where the first answer ended.
    prompt = dialog.get_by_role("region", name=re.compile(r"Prompt: \d+ tokens"))
    expect(prompt).to_contain_text(re.compile(r"\d+ from (KV cache|host memory)"))
    expect(prompt).to_contain_text("It continues a cached prompt.")
    assert serious_findings(page) == []

    dialog.get_by_role("link", name="Show in the prefix tree").click()
    marked = page.locator("[role=treeitem][aria-current=true]")
    expect(marked.first).to_be_visible()
    expect(page.get_by_text(re.compile(r"Marked: the path of an answer, \d+ tokens"))).to_be_visible()
    page.get_by_role("link", name="Clear").click()
    expect(marked).to_have_count(0)
