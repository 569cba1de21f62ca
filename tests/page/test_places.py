"""What belongs to a conversation stays with it: its draft, its place, and an answer that is being generated."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.chatting import answered, answers, ask, composer, entries, text_of
from tests.server import Server, wait_for
from tests.tiers import full

pytestmark = full

LONG = "say: " + "\n\n".join(f"paragraph {number} " + "word " * 60 for number in range(10))
GROWING = "say: " + "\n\n".join(f"line {number}" for number in range(10, 200))

ENDED = re.compile("stopped|interrupted|finished")


def view(page: Page, name: str) -> Locator:
    return page.get_by_role("navigation", name="Views").get_by_role("link", name=name)


def scroller(page: Page) -> Locator:
    return page.get_by_role("region", name="Messages")


def top(page: Page) -> float:
    return float(scroller(page).evaluate("view => view.scrollTop"))


def left(page: Page) -> float:
    """Pixels below the view."""
    return float(scroller(page).evaluate("view => view.scrollHeight - view.scrollTop - view.clientHeight"))


def attach(page: Page, name: str) -> None:
    file = {"name": name, "mimeType": "text/plain", "buffer": b"text"}
    page.get_by_label("Files to attach", exact=True).set_input_files(file)  # type: ignore[arg-type]


def test_the_way_back_from_another_view(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, LONG)
    answered(page)
    composer(page).fill("half a tho")
    attach(page, "notes.txt")
    scroller(page).hover()
    end = top(page)
    page.mouse.wheel(0, -600)
    page.wait_for_function("end => document.querySelector('.thread').scrollTop <= end - 599", arg=end)
    expect(page.get_by_role("button", name="Scroll to bottom")).to_be_visible()
    before = settled(page)
    for name in ("Live", "Playground"):
        view(page, name).click()
        expect(composer(page)).to_have_count(0)
        view(page, "Chat").click()
        answered(page)
        expect(composer(page)).to_have_value("half a tho")
        expect(page.get_by_role("list", name="Attached files")).to_have_text("notes.txt")
        assert settled(page) == pytest.approx(before, abs=2)
    page.reload()
    answered(page)
    expect(composer(page)).to_have_value("half a tho")
    expect(page.get_by_role("list", name="Attached files")).to_have_text("notes.txt")


def settled(page: Page) -> float:
    """Where the first message that is still visible begins, once nothing moves any more."""
    place = "view => view.querySelector('article:last-of-type').getBoundingClientRect().top"
    last = None
    while (now := float(scroller(page).evaluate(place))) != last:
        last = now
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")
    return now


def test_a_draft_belongs_to_its_conversation(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: first")
    answered(page)
    composer(page).fill("for the first")
    attach(page, "first.txt")
    page.get_by_role("button", name="New chat").click()
    expect(composer(page)).to_have_value("")
    expect(page.get_by_role("list", name="Attached files")).to_have_count(0)
    composer(page).fill("for a new one")
    entries(page).get_by_role("link").click()
    expect(composer(page)).to_have_value("for the first")
    expect(page.get_by_role("list", name="Attached files")).to_have_text("first.txt")
    page.get_by_role("button", name="New chat").click()
    expect(composer(page)).to_have_value("for a new one")


def test_only_the_user_stops_the_view_from_following(page: Page, slow_server: Server) -> None:
    page.set_viewport_size({"width": 1280, "height": 420})
    page.goto(slow_server.url)
    ask(page, GROWING)
    answer = text_of(answers(page).first)
    expect(answer).to_contain_text("line 22")
    # The browser moves the view when a block above the end becomes shorter.
    scroller(page).evaluate("view => { view.scrollTop -= 120 }")
    expect(answer).to_contain_text("line 24")
    expect(page.get_by_role("button", name="Scroll to bottom")).to_have_count(0)
    wait_for(lambda: left(page) < 60, 30, "the view to follow")
    # The user scrolls by a little, nearer to the end than it takes to follow again.
    scroller(page).hover()
    page.mouse.wheel(0, -40)
    expect(page.get_by_role("button", name="Scroll to bottom")).to_be_visible()
    place = top(page)
    expect(answer).to_contain_text("line 28")
    assert top(page) == pytest.approx(place, abs=1)
    page.get_by_role("button", name="Scroll to bottom").click()
    expect(answer).to_contain_text("line 31")
    wait_for(lambda: left(page) < 60, 30, "the view to follow")
    page.keyboard.press("Escape")
    answered(page)


def test_an_answer_goes_on_after_a_reload(page: Page, slow_server: Server) -> None:
    page.goto(slow_server.url)
    ask(page, "say: " + "word " * 30 + "end")
    expect(text_of(answers(page).first)).to_contain_text("word")
    page.reload()
    expect(text_of(answers(page).first)).to_contain_text("word end")
    expect(answered(page).locator(".statistics")).to_contain_text("finished")
    page.reload()
    expect(text_of(answered(page))).to_contain_text("word end")


def test_other_tabs_show_a_growing_answer_and_can_stop_it(page: Page, slow_server: Server) -> None:
    page.goto(slow_server.url)
    ask(page, "say: " + "word " * 800)
    expect(text_of(answers(page).first)).to_contain_text("word word")
    other = page.context.new_page()
    other.goto(page.url)
    expect(answers(other).first).to_have_attribute("aria-busy", "true")
    expect(answers(other).first.locator(".statistics")).not_to_contain_text(ENDED)
    page.reload()
    expect(answers(page).first).to_have_attribute("aria-busy", "true")
    other.get_by_role("button", name="Stop").click()
    for tab in (page, other):
        expect(answered(tab).locator(".statistics")).to_contain_text(ENDED)
        expect(answers(tab).first.get_by_role("alert")).to_have_count(0)

    def is_idle() -> bool:
        return not any(slot["is_processing"] for slot in slow_server.client.get("/slots").json())

    wait_for(is_idle, 30, "the end of the answer")
