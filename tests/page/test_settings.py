"""Settings of one chat, presets, defaults of a model, and thinking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.chatting import answered, ask, body_of, composer, entries, open_settings
from tests.server import Server
from tests.tiers import full

pytestmark = full

TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}{% endif %}{{ reasoning_effort }}"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A fake model with a template that knows thinking and effort."""
    with Server("-m", "fake:", "--chat-template", TEMPLATE) as server:
        yield server


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Chat settings")


def done(page: Page) -> None:
    dialog(page).get_by_role("button", name="Done").click()
    expect(dialog(page)).to_have_count(0)


def sent_by(page: Page, text: str) -> dict[str, Any]:
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, text)
    return body_of(sent.value)


def new_chat(page: Page) -> None:
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("article")).to_have_count(0)
    expect(composer(page)).to_be_focused()


def test_settings_belong_to_one_chat_and_presets_to_all(page: Page, server: Server) -> None:
    page.goto(server.url)
    open_settings(page)
    dialog(page).get_by_label("Temperature").fill("0")
    dialog(page).get_by_label("System prompt", exact=True).fill("Be brief.")
    dialog(page).get_by_label("Think before answering").select_option("off")
    dialog(page).get_by_role("button", name="Save this prompt").click()
    dialog(page).get_by_label("Name of the prompt").fill("Brief")
    page.keyboard.press("Enter")
    dialog(page).get_by_role("button", name="Save as preset").click()
    dialog(page).get_by_label("Preset name").fill("Cold")
    page.keyboard.press("Enter")
    expect(dialog(page).get_by_label("Presets", exact=True)).to_have_value("Cold")
    done(page)
    first = sent_by(page, "say: one")
    assert (first["temperature"], first["enable_thinking"]) == (0, False)
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    answered(page)

    new_chat(page)
    assert "temperature" not in sent_by(page, "say: two"), "nothing leaks into a new chat"
    answered(page)
    open_settings(page)
    dialog(page).get_by_label("Saved system prompts").select_option("Brief")
    dialog(page).get_by_label("Reasoning effort").select_option("high")
    dialog(page).get_by_text("DRY and XTC").click()
    dialog(page).get_by_label("XTC probability").fill("0.5")
    dialog(page).get_by_label("Custom fields").fill('{"typical_p": 0.9}')
    dialog(page).get_by_role("button", name="Use for new chats with fake").click()
    done(page)
    second = sent_by(page, "say: three")
    wanted = {"reasoning_effort": "high", "xtc_probability": 0.5, "typical_p": 0.9}
    assert {name: second[name] for name in wanted} == wanted
    answered(page, 2)

    page.reload()
    expect(entries(page)).to_have_count(2)
    new_chat(page)
    third = sent_by(page, "say: four")
    assert (third["messages"][0]["content"], third["typical_p"]) == ("Be brief.", 0.9), "the defaults of the model"
    answered(page)
    open_settings(page)
    dialog(page).get_by_label("Presets", exact=True).select_option("Cold")
    expect(dialog(page).get_by_label("Temperature")).to_have_value("0")
    dialog(page).get_by_role("button", name="Reset to defaults").click()
    expect(dialog(page).get_by_label("Custom fields")).to_have_value('{"typical_p": 0.9}')
    dialog(page).get_by_role("button", name="Remove the defaults of fake").click()
    done(page)
    new_chat(page)
    assert "typical_p" not in sent_by(page, "say: five")
