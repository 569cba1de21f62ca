"""Which model answers, how each one is, and loading and unloading them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.page.chatting import answered, ask, body_of
from tests.server import Server
from tests.tiers import full

pytestmark = full


@pytest.fixture
def folder(tiny_models: dict[str, Path], tmp_path: Path) -> Path:
    for name in ("llama", "recurrent", "embedding"):
        shutil.copy(tiny_models[name], tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, but no more than that")
    return tmp_path


def test_models_are_loaded_unloaded_and_chosen(page: Page, folder: Path) -> None:
    with Server("--models-dir", str(folder), "-c", "256") as server:
        page.goto(server.url)
        page.get_by_role("button", name="Select a model").click()
        models = page.get_by_role("dialog", name="Models")
        expect(models.get_by_role("listitem")).to_have_count(3)  # one of the four makes vectors
        broken = models.get_by_role("listitem").filter(has_text="broken")
        expect(broken).to_contain_text("failed")
        llama = models.get_by_role("listitem").filter(has_text="llama")
        expect(llama).to_contain_text("not loaded")
        assert not any(model["pid"] for model in server.client.get("/admin/status").json()["models"])
        llama.get_by_role("button", name="Load llama").click()
        expect(llama.get_by_role("button", name="Unload llama")).to_be_visible()
        expect(llama).to_contain_text("loaded")
        llama.get_by_role("button", name="Unload llama").click()
        expect(llama).to_contain_text("not loaded")
        models.get_by_role("listitem").filter(has_text="recurrent").get_by_role("button", pressed=False).first.click()
        expect(models).to_be_hidden()
        with page.expect_request("**/v1/chat/completions") as sent:
            ask(page, "hello")
        assert body_of(sent.value)["model"] == "recurrent"
        page.keyboard.press("Escape")
        answered(page)
        page.reload()
        expect(page.get_by_role("button", name="Select a model")).to_contain_text("recurrent")


def test_a_load_that_fails_says_why(page: Page) -> None:
    with Server("-m", "fake:bogus=1") as server:
        page.goto(server.url)
        page.get_by_role("button", name="Select a model").click()
        models = page.get_by_role("dialog", name="Models")
        models.get_by_role("button", name=re.compile("^Load ")).click()
        expect(models.get_by_role("listitem")).to_contain_text("has no option 'bogus'")
        expect(models.get_by_role("button", name=re.compile("^Load "))).to_have_text("Retry")
        page.keyboard.press("Escape")
        ask(page, "hello")
        expect(answered(page).get_by_role("alert")).to_contain_text("has no option 'bogus'")


def test_a_key_that_may_not_load_is_told_so(page: Page, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    keys = {"somebody": {"key": "theirs"}}
    settings.write_text(json.dumps({"server": {"keys": keys}}))
    with Server("-m", "fake:", "--config", str(settings)) as server:
        page.goto(server.url)
        page.get_by_label("API key", exact=True).fill("theirs")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("button", name="Select a model").click()
        page.get_by_role("button", name="Load fake").click()
        expect(page.get_by_text("This API key is not allowed to load models.")).to_be_visible()
        expect(page.get_by_role("button", name="Load fake")).to_have_count(0)
