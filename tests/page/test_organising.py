"""Pins, folders, several chats at once, other programs' exports, titles, and search from every view."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.page.axe import serious_findings
from tests.page.chatting import answered, answers, ask, body_of, entries, text_of
from tests.server import Server
from tests.tiers import full

pytestmark = full

LLAMA_CPP = [
    {
        "conv": {"id": "other", "name": "From llama.cpp", "lastModified": 1_700_000_000_000, "currNode": "a"},
        "messages": [
            {"id": "r", "type": "root", "role": "system", "content": "", "parent": None, "timestamp": 1},
            {"id": "u", "type": "text", "role": "user", "content": "A question", "parent": "r", "timestamp": 2},
            {"id": "a", "type": "text", "role": "assistant", "content": "An answer", "parent": "u", "timestamp": 3},
        ],
    }
]


def chats(page: Page, server: Server, *texts: str) -> None:
    page.goto(server.url)
    for text in texts:
        page.get_by_role("button", name="New chat").click()
        expect(page.get_by_role("article")).to_have_count(0)
        ask(page, f"say: {text}")
        answered(page)
    expect(entries(page)).to_have_count(len(texts))


def test_chats_are_pinned_moved_exported_and_deleted_together(page: Page, fake_server: Server, tmp_path: Path) -> None:
    chats(page, fake_server, "alpha", "beta", "gamma")
    history = page.get_by_role("navigation", name="History")
    entries(page).filter(has_text="alpha").hover()
    page.get_by_role("button", name="Pin say: alpha").click()
    expect(history.get_by_role("region", name="Pinned").locator(".entry")).to_have_text("say: alpha")
    page.get_by_role("button", name="Select", exact=True).click()
    for name in ("beta", "gamma"):
        page.get_by_label(f"Select say: {name}").check()
    assert serious_findings(page) == []
    page.get_by_label("Folder", exact=True).fill("Greek")
    page.get_by_role("button", name="Move").click()
    expect(history.locator(".folder .entry")).to_have_count(2)
    page.reload()
    folder = history.locator(".folder")
    expect(folder.locator(".entry")).to_have_count(2)
    folder.locator("summary").click()
    expect(folder.locator(".entry").first).to_be_hidden()

    page.get_by_role("button", name="Select", exact=True).click()
    page.get_by_label("Select say: alpha").check()
    with page.expect_download() as download:
        page.get_by_role("button", name="Markdown").click()
    assert download.value.suggested_filename.startswith("paddock-say-alpha-20")
    assert download.value.suggested_filename.endswith(".md")
    download.value.save_as(tmp_path / "chat.md")
    assert (tmp_path / "chat.md").read_text() == "# say: alpha\n\n## You\n\nsay: alpha\n\n## fake\n\nalpha\n"

    folder.locator("summary").click()
    page.get_by_role("button", name="Select", exact=True).click()
    for name in ("alpha", "beta", "gamma"):
        page.get_by_label(f"Select say: {name}").check()
    page.get_by_role("region", name="Selected chats").get_by_role("button", name="Delete").click()
    expect(entries(page)).to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="Deleted 3 chats.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(entries(page)).to_have_count(3)
    expect(text_of(answered(page))).to_have_text("gamma")

    file = tmp_path / "export.json"
    file.write_text(json.dumps(LLAMA_CPP))
    page.get_by_label("File to import").set_input_files(file)
    page.get_by_role("link", name="From llama.cpp").click()
    expect(text_of(answered(page))).to_have_text("An answer")

    page.get_by_role("link", name="Live").click()
    expect(answers(page)).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("searchbox", name="Search history")).to_be_focused()
    page.keyboard.type("beta")
    expect(entries(page)).to_have_count(1)


def test_a_model_writes_the_title_of_a_new_chat(page: Page, fake_server: Server) -> None:
    page.add_init_script("localStorage.setItem('paddock.titles', 'on')")
    page.goto(fake_server.url)
    with page.expect_request(lambda request: "at most six words" in (request.post_data or "")) as sent:
        ask(page, "say: hello")
    body = body_of(sent.value)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"], "it shares the prefix"
    assert "stream" not in body
    expect(entries(page)).not_to_contain_text("say: hello")
    title = entries(page).inner_text().strip()
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
