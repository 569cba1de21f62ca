"""What a person does in the chat, and what they see."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page, Request, expect


def ask(page: Page, text: str) -> None:
    box = composer(page)
    box.fill(text)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()  # it knows which models there are
    box.press("Enter")


def open_settings(page: Page) -> None:
    expect(composer(page)).to_be_focused()  # and keys are listened to
    page.keyboard.press("Control+.")


def body_of(request: Request) -> dict[str, Any]:
    body = request.post_data_json
    assert isinstance(body, dict)
    return body


def composer(page: Page) -> Locator:
    return page.locator("#composer")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def answered(page: Page, count: int = 1) -> Locator:
    """The last of so many answers, once it is complete."""
    expect(answers(page)).to_have_count(count)
    last = answers(page).last
    expect(last).to_have_attribute("aria-busy", "false")
    return last


def text_of(answer: Locator) -> Locator:
    """Its words, without what stands around them."""
    return answer.locator(":scope > .markdown")


def entries(page: Page) -> Locator:
    return page.get_by_role("navigation", name="History").locator(".entry")
