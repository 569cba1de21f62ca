"""Lists, tables and footnotes as they were written."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.page.chatting import answered, ask, text_of
from tests.server import Server
from tests.tiers import full

pytestmark = full

NUMBERS = "lists => lists.flatMap(list => [...list.children].map((_, place) => list.start + place))"


def said(page: Page, server: Server, markdown: str) -> Locator:
    page.goto(server.url)
    ask(page, f"say: {markdown}")
    return text_of(answered(page))


def test_numbers_go_on_after_code_and_in_long_lists(page: Page, fake_server: Server) -> None:
    answer = said(page, fake_server, "1. one\n\n```\ncode\n```\n\n2. two\n3. three")
    assert answer.locator("ol").evaluate_all(NUMBERS) == [1, 2, 3]
    # A long list is rendered in parts, and many models number every item 1.
    long = said(page, fake_server, "\n".join(f"1. {'word ' * 20}" for _ in range(30)))
    expect(long.locator("li")).to_have_count(30)
    assert long.locator("ol").count() > 1
    assert long.locator("ol").evaluate_all(NUMBERS) == list(range(1, 31))


def test_tables_keep_their_alignment_and_spans(page: Page, fake_server: Server) -> None:
    answer = said(
        page, fake_server, "| a | b |\n|:-:|--:|\n| 1 | 2 |\n\n<table><tr><td colspan=2>wide</td></tr></table>"
    )
    for place, align in enumerate(("center", "right")):
        expect(answer.get_by_role("cell").nth(place)).to_have_css("text-align", align)
    expect(answer.get_by_role("cell", name="wide")).to_have_attribute("colspan", "2")


def test_footnotes_stand_once_and_tasks_have_no_bullets(page: Page, fake_server: Server) -> None:
    answer = said(page, fake_server, "One[^1] and [two].\n\nThree [four].\n\n- [x] done\n- [ ] open\n\n[^1]: The note.")
    expect(answer.get_by_text("The note.")).to_have_count(1)
    expect(answer.locator("sup")).to_have_text(["1", "1"])
    for item in answer.get_by_role("listitem").all():
        expect(item).to_have_css("list-style-type", "none")


def test_a_wide_table_scrolls_on_a_phone(page: Page, fake_server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    words = ["Extraordinary", "Characteristics", "Transportation", "Responsibilities"]
    rule = "|".join("---" for _ in words)
    answer = said(page, fake_server, f"|{'|'.join(words)}|\n|{rule}|\n|{'|'.join(words)}|")
    frame = answer.get_by_role("region", name="Table")
    assert frame.evaluate("frame => frame.scrollWidth > frame.clientWidth")
    heights = answer.get_by_role("cell").evaluate_all("cells => cells.map(cell => cell.clientHeight)")
    assert max(heights) < 50, "no word is broken"
