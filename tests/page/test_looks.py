"""Phones, dark rooms, and people who do not see or do not use a mouse."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, FloatRect, Locator, Page, expect

from tests.page.axe import serious_findings
from tests.page.chatting import answered, ask, composer, entries
from tests.server import Server
from tests.tiers import full

pytestmark = full

PHONE = {"width": 390, "height": 844}
ANSWER = """\
say: # A title

Some `code`, a [link](https://example.org).

```python
x = 'text'  # why
```

| a | b |
|---|---|
| 1 | 2 |"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_axe_finds_nothing_serious(browser: Browser, fake_server: Server, scheme: str, size: str) -> None:
    viewport = PHONE if size == "phone" else {"width": 1280, "height": 800}
    context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.goto(fake_server.url)
        expect(composer(page)).to_have_attribute("placeholder", "Message fake")
        assert serious_findings(page) == []
        ask(page, ANSWER)
        expect(answered(page).locator(".hljs-comment")).to_be_visible()
        ask(page, "crash: now")
        expect(answered(page, 2).get_by_role("alert")).to_be_visible()
        assert serious_findings(page) == []
        page.get_by_role("button", name="Select a model").click()
        expect(page.get_by_role("dialog", name="Models")).to_be_visible()
        assert serious_findings(page) == []
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Chat settings").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert serious_findings(page) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        if size == "phone":
            page.get_by_role("button", name="History", exact=True).click()
            expect(entries(page)).to_have_count(1)
            assert serious_findings(page) == []
    finally:
        context.close()


def test_a_phone_has_the_history_in_a_drawer(browser: Browser, fake_server: Server) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.goto(fake_server.url)
        composer(page).fill("say: from a phone " + "word" * 100 + "\n\n```\n" + "x" * 500 + "\n```")
        page.get_by_role("button", name="Send", exact=True).tap()
        answered(page)
        history = page.get_by_role("navigation", name="History")
        expect(history).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.get_by_role("button", name="History", exact=True).tap()
        expect(history).to_be_visible()
        entries(page).get_by_role("link").tap()
        page.get_by_role("button", name="Close history").first.tap()
        expect(history).to_be_hidden()
        expect(composer(page)).to_be_in_viewport()
    finally:
        context.close()


def box_of(locator: Locator) -> FloatRect:
    box = locator.bounding_box()
    assert box is not None
    return box


def test_nothing_covers_anything_else(page: Page, fake_server: Server) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(fake_server.url)
    for words in ("say: " + "\n\n".join("line" for _ in range(40)), "say: two"):
        ask(page, words)
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    answered(page, 2)
    before = box_of(page.locator(".message-assistant:nth-child(2)"))
    question = box_of(page.locator(".message-user .bubble").last)
    answer = box_of(page.locator(".message-assistant").last)
    above = question["y"] - before["y"] - before["height"]
    below = answer["y"] - question["y"] - question["height"]
    assert 0 <= below < above, "a question is nearest to its own answer"
    title = page.get_by_role("heading", level=1)
    assert title.evaluate("title => title.clientWidth > 250")
    page.get_by_role("region", name="Messages").hover()
    page.mouse.wheel(0, -400)
    to_end = page.get_by_role("button", name="Scroll to bottom")
    expect(to_end).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")
    page.get_by_role("button", name="History", exact=True).click()
    entries(page).hover()
    entries(page).get_by_role("button", name="Delete").click()
    notice = page.locator(".notice")
    expect(notice).to_be_visible()
    lowest = box_of(notice)
    assert lowest["y"] + lowest["height"] < box_of(composer(page))["y"]


def test_a_phone_has_a_key_for_new_lines(browser: Browser, fake_server: Server) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.goto(fake_server.url)
        composer(page).press_sequentially("say: one\ntwo")
        expect(composer(page)).to_have_value("say: one\ntwo")
        page.get_by_role("button", name="Send", exact=True).tap()
        answered(page)
    finally:
        context.close()


def test_colours_follow_the_system_or_the_person(page: Page, fake_server: Server) -> None:
    def dark() -> bool:
        return bool(page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 26)")

    page.emulate_media(color_scheme="dark")
    page.goto(fake_server.url)
    assert dark()
    page.get_by_role("button", name="Theme: system").click()
    assert not dark()
    page.reload()
    assert not dark()
    page.get_by_role("button", name="Theme: light").click()
    page.emulate_media(color_scheme="light")
    assert dark()


def test_everything_can_be_reached_by_keyboard(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: hello")
    answered(page)
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText")
        )
    assert {"Regenerate", "Edit answer", "Edit", "Attach files", "Message"} <= reached
    assert any(name.startswith("Rename") for name in reached)
