"""Another version of an answer from one of its tokens on, by mouse and by keyboard."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.page.axe import serious_findings
from tests.page.chatting import answered, ask, body_of, text_of
from tests.server import Server
from tests.tiers import full

pytestmark = full


def test_an_answer_goes_on_from_another_token(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: grass")
    answer = answered(page)
    answer.get_by_role("button", name="Branch from a token").click()
    tokens = answer.get_by_role("toolbar").get_by_role("button")
    expect(tokens).to_have_text(list("grass"))
    tokens.nth(2).click()
    panel = answer.get_by_role("region", name="Alternatives to “a”")
    # The one that was taken is among them.
    expect(panel.get_by_role("button", name=re.compile(r"^a [\d.]+%"))).to_have_count(1)
    assert serious_findings(page) == []

    # By keyboard: to the next token, and there to an own text.
    tokens.nth(2).press("ArrowRight")
    page.keyboard.press("Enter")
    own = answer.get_by_role("textbox", name="Your own text")
    own.fill("ins")
    with page.expect_request(re.compile("chat/completions")) as request:
        own.press("Enter")
    body = body_of(request.value)
    assert body["messages"][-1] == {"role": "assistant", "content": "grains"}
    assert body["prefill_assistant"] is True
    branched = answered(page)
    expect(text_of(branched)).to_have_text(re.compile("^grains"))
    expect(branched).to_contain_text("2/2")
    branched.get_by_role("button", name="Previous version").click()
    expect(text_of(answered(page))).to_have_text("grass")

    # One of the alternatives, at the first token: nothing of the answer is left.
    answered(page).get_by_role("button", name="Branch from a token").click()
    tokens.nth(0).click()
    panel = answer.get_by_role("region", name="Alternatives to “g”")
    other = panel.get_by_role("listitem").get_by_role("button").nth(1)
    expect(other).to_be_visible()
    with page.expect_request(re.compile("chat/completions")) as request:
        other.click()
    assert body_of(request.value)["messages"][-1]["role"] == "assistant"
    expect(answered(page)).to_contain_text("3/3")
