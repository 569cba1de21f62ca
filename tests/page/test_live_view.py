"""The live view in a real browser, beside a real server: what goes on there is what is seen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.page.axe import serious_findings
from tests.server import Server
from tests.tiers import full

pytestmark = full

SYSTEM = "You look after the horses of this paddock, and answer in one sentence."
# Nine minutes of it, at five tokens a second.
LONG = "the grey mare grazes by the brook " * 80


@contextmanager
def conversations(server: Server, count: int) -> Iterator[None]:
    """So many under way at once, all with the same system prompt; they go on until this ends."""
    with ExitStack() as open_streams:
        for number in range(count):
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"say: {number} {LONG}"}]
            body = {"messages": messages, "stream": True, "max_tokens": 4000}
            stream = server.client.stream("POST", "/v1/chat/completions", json=body)
            response = open_streams.enter_context(stream)
            assert response.status_code == 200
        yield


@pytest.fixture(scope="module")
def busy_server() -> Iterator[Server]:
    """Three conversations and two slots, for tests that only look."""
    with Server("-m", "fake:delay=0.2", "-np", "2") as server, conversations(server, 3):
        yield server


def look(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/#/live")
    is_live(page)


def is_live(page: Page) -> None:
    expect(page.get_by_role("status").filter(has_text=re.compile("^Live$"))).to_be_visible()


def test_who_answers_who_waits_and_why(page: Page, busy_server: Server) -> None:
    look(page, busy_server)
    verdict = page.get_by_role("heading", level=1)
    expect(verdict).to_have_text(
        re.compile(r"fake: 2 generating at [\d.]+ tokens/s, 1 waiting because all 2 slots are busy")
    )
    slots = page.get_by_role("list", name="Slots of fake").get_by_role("listitem")
    expect(slots).to_have_count(2)
    for slot in range(2):
        expect(slots.nth(slot)).to_contain_text("generating")
    expect(page.get_by_role("article", name="fake")).to_contain_text("1 request waiting")


def test_a_shared_span_and_who_uses_it(page: Page, busy_server: Server) -> None:
    look(page, busy_server)
    shared = page.get_by_role("treeitem", name=re.compile("used by slot 0 and slot 1"))
    expect(shared).to_have_count(1)
    expect(shared).to_have_accessible_name(re.compile(re.escape(SYSTEM[:20])))
    shared.hover()
    expect(page.locator(".explanation")).to_contain_text(SYSTEM[:20])

    # The same by keyboard: from the shared span to what follows it, and back.
    shared.focus()
    page.keyboard.press("ArrowRight")
    own = page.locator("[role=treeitem]:focus")
    expect(own).to_have_attribute("aria-level", "2")
    page.keyboard.press("ArrowLeft")
    expect(own).to_have_attribute("aria-level", "1")

    # And as a table.
    page.get_by_text("As a table").click()
    expect(page.get_by_role("row").filter(has_text="0, 1")).to_contain_text(SYSTEM[:20])


def test_charts_show_the_time_that_is_asked_for(page: Page, busy_server: Server) -> None:
    look(page, busy_server)
    tokens = page.get_by_role("region", name="Tokens per second")
    expect(tokens).to_contain_text(re.compile(r"generated \d"))
    expect(page.get_by_role("region", name="Requests")).to_contain_text(re.compile(r"running 2.*waiting 1"))
    page.get_by_role("button", name="1 min").click()
    expect(page.get_by_role("button", name="1 min")).to_have_attribute("aria-pressed", "true")


def test_nothing_is_asked_while_the_tab_is_hidden(page: Page, busy_server: Server) -> None:
    look(page, busy_server)
    hide = """hidden => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    expect(page.get_by_role("status").filter(has_text="Paused")).to_be_visible()
    page.evaluate(hide, False)
    is_live(page)


def test_a_model_is_loaded_and_unloaded(page: Page) -> None:
    with Server("-m", "fake:") as server:
        look(page, server)
        expect(page.get_by_role("heading", level=1)).to_contain_text("No model loaded")
        page.get_by_role("button", name="Load fake").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("fake loaded")
        page.get_by_role("button", name="Unload fake").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("No model loaded")


def test_a_broken_file_is_a_note(page: Page, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, but no more")
    with Server("--models-dir", str(tmp_path)) as server:
        look(page, server)
        expect(page.get_by_text("1 file cannot be loaded")).to_be_visible()
        expect(page.get_by_text("broken: ")).to_be_hidden()
        page.get_by_text("1 file cannot be loaded").click()
        expect(page.get_by_text("broken: ")).to_be_visible()
        # It is a note, not the state of the server.
        expect(page.get_by_role("heading", level=1)).not_to_contain_text("broken")
        expect(page.get_by_role("heading", level=1)).not_to_have_class(re.compile("problem"))
        page.goto(f"{server.url}/#/playground")
        expect(page.get_by_label("Model").get_by_role("option")).to_have_count(1)
        expect(page.get_by_label("Model")).not_to_have_value("broken")
        expect(page.get_by_role("button", name="Complete")).to_be_disabled()


def test_another_server_in_its_place(page: Page) -> None:
    verdict = page.get_by_role("heading", level=1)
    with Server("-m", "fake:") as server:
        server.chat("Hello")
        look(page, server)
        expect(verdict).to_contain_text("fake loaded")
        port = server.url.rpartition(":")[2]
    expect(page.get_by_role("status").filter(has_text="Not live")).to_be_visible()
    # What was known is still there to be read.
    expect(verdict).to_contain_text("fake loaded")
    with Server("-m", "fake:", "--port", port):
        is_live(page)
        expect(verdict).to_contain_text("No model loaded")


def test_a_key_that_may_not(context: BrowserContext, tmp_path: Path) -> None:
    """Neither load models nor see what others say; and it is told so."""
    keys = {"boss": {"key": "boss", "admin": True}, "anna": {"key": "anna"}}
    models = {"demo": {"path": "fake:delay=0.05"}, "other": {"path": "fake:"}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"server": {"keys": keys}, "model_manager": {"models": models}}))
    context.add_init_script("sessionStorage.setItem('paddock.key', 'anna')")
    page = context.new_page()
    with Server("--config", str(config)) as server:
        body = {"model": "demo", "messages": [{"role": "user", "content": f"say: {LONG}"}], "stream": True}
        boss = {"authorization": "Bearer boss"}
        with server.client.stream("POST", "/v1/chat/completions", json=body, headers=boss):
            look(page, server)
            page.get_by_role("button", name="Load other").click()
            expect(page.get_by_role("alert")).to_contain_text("An admin key is required to load models")
            page.get_by_role("treeitem").first.hover()
            expect(page.locator(".explanation")).to_contain_text("The text is hidden from your key")
            expect(page.get_by_role("main")).not_to_contain_text("grey mare")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_anybody_can_use_it(context: BrowserContext, busy_server: Server, scheme: str, width: int) -> None:
    page = context.new_page()
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 844})
    look(page, busy_server)
    expect(page.get_by_role("treeitem").first).to_be_visible()
    page.get_by_text("As a table").click()
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing lies beside the screen"


def test_why_a_prompt_was_not_cached(page: Page) -> None:
    with Server("-m", "fake:") as server:
        for word in ("3f2a", "91bc"):
            messages = [{"role": "system", "content": f"cch={word}; {SYSTEM}"}, {"role": "user", "content": "say: hi"}]
            assert server.client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
        look(page, server)
        newest = page.get_by_role("list", name="Recent prompts of fake").get_by_role("listitem").first
        expect(newest).to_contain_text("System message, character 4")
        expect(newest).to_contain_text(re.compile(r"cch=91bc; .* instead of cch=3f2a; "))
        assert serious_findings(page) == []


def test_batches_and_their_progress(page: Page, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": f"say: {LONG}"}], "max_tokens": 400}
    lines = [{"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(3)]
    bad = {"messages": [{"role": "user", "content": "raise: now"}]}
    content = "\n".join(map(json.dumps, [lines[0] | {"custom_id": "bad", "body": bad}, *lines]))
    with Server("-m", "fake:delay=0.1", "--data-dir", str(tmp_path), "--batch-may-load", "never") as server:
        look(page, server)
        expect(page.get_by_role("region", name="Batches")).to_have_count(0)
        file = server.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)}).json()
        batch = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = server.client.post("/v1/batches", json=batch).json()
        row = page.get_by_role("list", name="Batches").locator("> li")
        expect(row).to_contain_text(f"{made['id']} /v1/chat/completions")
        expect(row).to_contain_text("0 of 4 requests")
        expect(row).to_contain_text(re.compile("in_progress.*Waiting: the model 'fake' is not loaded"))
        server.chat("say: now it is loaded")
        expect(row).to_contain_text("1 of 4 requests 1 failed")
        expect(row.get_by_role("listitem")).to_contain_text("bad: ")
        assert serious_findings(page) == []
        row.get_by_role("button", name="Cancel").click()
        expect(row).to_contain_text("cancelled")
        expect(row.get_by_role("button", name=re.compile("^Cancel"))).to_have_count(0)


def test_the_first_errors_of_a_batch_and_its_files(page: Page, tmp_path: Path) -> None:
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": text}], "max_tokens": 20},
        }
        for name, text in (("short", "say: hay"), ("long", "x" * 20_000))
    ]
    content = "\n".join(map(json.dumps, lines))
    with Server("-m", "fake:", "--data-dir", str(tmp_path)) as server:
        file = server.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)}).json()
        batch = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        server.client.post("/v1/batches", json=batch).raise_for_status()
        look(page, server)
        row = page.get_by_role("list", name="Batches", exact=True).locator("> li")
        expect(row).to_contain_text("completed")
        row.get_by_text("First errors").click()
        expect(row).to_contain_text(re.compile("long: .*8192"))
        assert serious_findings(page) == []
        with page.expect_download() as results:
            row.get_by_role("button", name=re.compile("Download results")).click()
        assert '"custom_id":"short"' in results.value.path().read_text()
        with page.expect_download() as errors:
            row.get_by_role("button", name=re.compile("Download errors")).click()
        assert '"custom_id":"long"' in errors.value.path().read_text()
