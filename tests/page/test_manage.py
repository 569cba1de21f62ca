"""The view of the server's models: downloads, options of a load with their memory, and deletion."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.hub import Hub, Repository
from tests.page.axe import serious_findings
from tests.server import Server
from tests.tiers import full

pytestmark = full


def test_a_model_is_found_downloaded_loaded_with_options_and_deleted(
    page: Page, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(tiny_models["llama"], models / "own.gguf")
    content = tiny_models["llama"].read_bytes()
    repository = Repository({"tiny-Q4_0.gguf": content, "tiny-Q8_0.gguf": content}, pause_after=1000)
    with (
        Hub(owner__tiny=repository) as hub,
        Server("--models-dir", str(models), env={"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}) as server,
    ):
        page.goto(f"{server.url}/#/models")
        served = page.get_by_role("region", name="On this server")
        expect(served.get_by_role("listitem")).to_have_count(1)
        page.get_by_role("searchbox").fill("tiny")
        page.keyboard.press("Enter")
        page.get_by_text("owner/tiny").click()
        page.get_by_role("button", name="Download owner/tiny:Q8_0").click()
        downloads = page.get_by_role("region", name="Downloads")
        expect(downloads.get_by_role("progressbar")).to_be_visible()
        assert serious_findings(page) == []
        repository.resume.set()
        expect(downloads).to_contain_text("finished")
        expect(served.get_by_role("listitem")).to_have_count(2)

        page.get_by_role("button", name="Load tiny-Q8_0 with options").click()
        dialog = page.get_by_role("dialog", name="Load tiny-Q8_0")
        expect(dialog.get_by_role("status")).to_contain_text("KV cache")
        dialog.get_by_label("Context size in tokens").fill("x")
        expect(dialog.get_by_role("status")).to_contain_text("Enter whole numbers")
        dialog.get_by_label("Context size in tokens").fill("512")
        dialog.get_by_label("Parallel requests").fill("1")
        assert serious_findings(page) == []
        dialog.get_by_role("button", name="Load").click()
        expect(dialog).to_be_hidden()
        expect(served.get_by_role("button", name="Unload tiny-Q8_0")).to_be_visible()
        props = server.client.get("/props", params={"model": "tiny-Q8_0"}).json()
        assert props["default_generation_settings"]["n_ctx"] == 512

        page.set_viewport_size({"width": 390, "height": 800})
        page.get_by_role("button", name="Delete tiny-Q8_0").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(served.get_by_role("listitem")).to_have_count(1)
        assert not list(models.rglob("tiny*"))
