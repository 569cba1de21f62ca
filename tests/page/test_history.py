"""Conversations in the browser: found, renamed, deleted and taken along, and safe from a second tab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, FilePayload, Page, expect

from tests.page.chatting import answered, answers, ask, composer, entries, text_of
from tests.server import Server
from tests.tiers import full

pytestmark = full


def _two_conversations(page: Page, server: Server) -> None:
    page.goto(server.url)
    ask(page, "say: a mare under an oak")
    answered(page)
    page.keyboard.press("Control+Shift+O")
    expect(answers(page)).to_have_count(0)
    ask(page, "say: a bicycle by the brook")
    answered(page)
    expect(entries(page)).to_have_count(2)


def test_searching(page: Page, fake_server: Server) -> None:
    _two_conversations(page, fake_server)
    page.keyboard.press("Control+k")
    page.get_by_label("Search history").fill("OAK mare")
    expect(entries(page)).to_have_count(1)
    entries(page).get_by_role("link").click()
    expect(text_of(answered(page))).to_have_text("a mare under an oak")
    page.get_by_label("Search history").fill("saddle")
    expect(page.get_by_text("No results")).to_be_visible()
    page.get_by_label("Search history").fill("")
    expect(entries(page)).to_have_count(2)


def test_renaming(page: Page, fake_server: Server) -> None:
    _two_conversations(page, fake_server)
    entry = entries(page).filter(has_text="bicycle")
    entry.hover()
    entry.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill("Wheels")
    page.get_by_role("textbox", name="Title").press("Enter")
    expect(page.get_by_role("heading", name="Wheels")).to_be_visible()
    expect(entries(page).filter(has_text="Wheels").get_by_role("link")).to_be_focused()
    page.reload()
    expect(entries(page).filter(has_text="Wheels")).to_be_visible()


def test_deleting_can_be_undone(page: Page, fake_server: Server) -> None:
    _two_conversations(page, fake_server)
    entry = entries(page).filter(has_text="bicycle")
    entry.hover()
    entry.get_by_role("button", name="Delete").click()
    expect(entries(page)).to_have_count(1)
    expect(answers(page)).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(entries(page)).to_have_count(2)
    expect(text_of(answered(page))).to_have_text("a bicycle by the brook")


def _exported(page: Page, path: Path) -> Any:
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    download.value.save_as(path)
    return json.loads(path.read_text())


def test_exporting_and_importing(page: Page, fake_server: Server, tmp_path: Path) -> None:
    _two_conversations(page, fake_server)
    file = tmp_path / "conversations.json"
    before = _exported(page, file)
    entries(page).filter(has_text="mare").hover()
    with page.expect_download() as download:
        entries(page).filter(has_text="mare").get_by_role("button", name="Export").click()
    assert download.value.suggested_filename.startswith("paddock-say-a-mare-under-an-oak-20")
    assert len(before["conversations"]) == 2
    chooser = page.get_by_label("File to import")
    chooser.set_input_files(file)
    expect(page.get_by_role("status").filter(has_text="Imported 0 chats; skipped 2 chats")).to_be_visible()
    for _ in range(2):
        entry = entries(page).first
        entry.hover()
        entry.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("button", name="Undo")).to_be_visible()
    expect(entries(page)).to_have_count(0)
    chooser.set_input_files(file)
    expect(entries(page)).to_have_count(2)
    after = _exported(page, tmp_path / "again.json")
    assert after["conversations"] == before["conversations"]


def test_a_bad_file_changes_nothing(page: Page, fake_server: Server, tmp_path: Path) -> None:
    _two_conversations(page, fake_server)
    file = tmp_path / "conversations.json"
    bad = _exported(page, file)
    bad["conversations"][1]["messages"][0]["content"] = None
    bad["conversations"][0]["id"] = "another"
    file.write_text(json.dumps(bad))
    page.get_by_label("File to import").set_input_files(file)
    told = page.get_by_role("status").filter(has_text="Import failed.")
    expect(told).to_contain_text("conversations[1].messages[0].content must be a text.")
    expect(entries(page)).to_have_count(2)


def test_two_tabs_keep_each_others_work(context: BrowserContext, page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    ask(page, "say: one")
    answered(page)
    other = context.new_page()
    other.goto(page.url)
    expect(text_of(answered(other))).to_have_text("one")
    ask(other, "say: from the other tab")
    expect(text_of(answered(other, 2))).to_have_text("from the other tab")
    expect(text_of(answered(page, 2))).to_have_text("from the other tab")
    ask(page, "say: and back")
    expect(text_of(answered(other, 3))).to_have_text("and back")
    page.reload()
    expect(text_of(answered(page, 3))).to_have_text("and back")


def test_a_thousand_messages_are_rendered_as_they_are_looked_at(page: Page) -> None:
    with Server("-m", "fake:n_ctx=65536") as server:
        page.goto(server.url)
        page.get_by_label("File to import").set_input_files(_file(_long(1000)))
        entries(page).get_by_role("link").click()
        expect(page.get_by_text("message 999", exact=True)).to_be_in_viewport()
        messages = page.locator("article")
        expect(messages).to_have_count(30)
        page.get_by_role("region", name="Messages").press("Home")
        expect(messages).to_have_count(60)
        expect(page.get_by_text("message 970", exact=True)).to_be_in_viewport()
        ask(page, "say: still quick")
        expect(text_of(answers(page).last)).to_have_text("still quick")
        expect(text_of(answers(page).last)).to_be_in_viewport()


def test_a_long_answer_is_shown_whole(page: Page, fake_server: Server) -> None:
    page.goto(fake_server.url)
    long = _long(2)
    long["conversations"][0]["messages"][1]["content"] = "".join(
        f"## Part {part}\n\nSome *words* of it.\n\n```python\nprint({part})\n```\n\n" for part in range(1600)
    )
    page.get_by_label("File to import").set_input_files(_file(long))
    entries(page).get_by_role("link").click()
    expect(page.locator(".markdown .code")).to_have_count(1600)
    expect(page.get_by_role("heading", name="Part 1599")).to_be_attached()
    expect(composer(page)).to_be_in_viewport()


def _file(content: dict[str, Any]) -> FilePayload:
    return {"name": "long.json", "mimeType": "application/json", "buffer": json.dumps(content).encode()}


def _long(count: int) -> dict[str, Any]:
    def message(place: int) -> dict[str, Any]:
        return {
            "id": f"m{place}",
            "parent": f"m{place - 1}" if place else None,
            "role": "assistant" if place % 2 else "user",
            "created": place,
            "content": f"message {place}",
            "finish": "stop",
        }

    conversation = {"id": "long", "title": "Long", "created": 1, "updated": 1}
    return {
        "format": "paddock-conversations",
        "version": 1,
        "conversations": [conversation | {"messages": [message(place) for place in range(count)]}],
    }
