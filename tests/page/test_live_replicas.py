"""The replicas in the live view: their state and load, and which prefixes they have."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Page, expect

from tests.page.axe import serious_findings
from tests.server import Server
from tests.tiers import full

pytestmark = full

SCHEMES: Final[tuple[Literal["dark", "light"], ...]] = ("dark", "light")

SYSTEM = "You look after the horses of this paddock. " * 12


def write_config(folder: Path, replicas: object) -> str:
    models = {"pooled": {"path": "fake:", "parallel": 2, "preload": True, "replicas": replicas}}
    file = folder / "config.json"
    file.write_text(json.dumps({"model_manager": {"models": models}}))
    return str(file)


def ask(server: Server, text: str) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"say: {text}"}]
    body = {"model": "pooled", "messages": messages}
    assert server.client.post("/v1/chat/completions", json=body).status_code == 200


def test_a_model_with_one_worker_has_no_replicas(page: Page, fake_server: Server) -> None:
    page.goto(f"{fake_server.url}/#/live")
    expect(page.get_by_role("region", name="Prefix tree")).to_be_visible()
    expect(page.get_by_role("region", name="Replicas", exact=True)).to_have_count(0)


def findings(page: Page) -> list[str]:
    """In both themes."""
    found = []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found += serious_findings(page)
    return found


def test_a_killed_worker_and_a_silent_server(page: Page, tmp_path: Path) -> None:
    replicas = {"one": {}, "two": {}, "spare": {"url": "http://127.0.0.1:9"}}
    with Server("--config", write_config(tmp_path, replicas)) as server:
        ask(server, "hello")
        ask(server, "goodbye")
        page.goto(f"{server.url}/#/live")
        rows = page.get_by_role("region", name="Replicas of pooled").get_by_role("row")
        expect(rows.filter(has_text="spare")).to_contain_text("It does not answer.")
        for name in ("one", "two"):
            expect(rows.filter(has_text=name)).to_contain_text("ready")
            expect(rows.filter(has_text=name)).to_contain_text("0 of 2")
        places = page.get_by_role("region", name="Where prefixes of pooled are")
        shared = places.get_by_role("row").filter(has_text="2 prompts")
        expect(shared).to_contain_text(f"system {SYSTEM[:30]}")
        expect(shared.get_by_text("100%")).to_have_count(1)
        expect(places.get_by_role("row").filter(has_text="user say: goodbye")).to_contain_text("100%")
        assert findings(page) == []

        found = server.client.get("/admin/status").json()["models"][0]["replicas"]
        for pid in (replica["pid"] for replica in found if replica["pid"]):
            os.kill(pid, signal.SIGKILL)
        for name in ("one", "two"):
            expect(rows.filter(has_text=name)).to_contain_text(re.compile("down.*SIGKILL"))
        expect(places.get_by_text("100%")).to_have_count(0)
        assert findings(page) == []

        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing lies beside the screen"
        table = page.get_by_role("region", name="Replicas of pooled")
        table.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("table => table.scrollLeft > 0", arg=table.element_handle())
        assert findings(page) == []
