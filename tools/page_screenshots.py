"""Makes the pictures of the web page in docs/images, with Chromium and a running server:

    paddock serve --port 8080
    python tools/page_screenshots.py http://127.0.0.1:8080

Every picture is made in both themes, on a desktop and on a phone. Look at them before you commit them.
`--only replicas` makes the picture of replicas, for which the server needs a model with several, and requests to them.
`--only tools` makes the picture of a tool call, for which the server needs an MCP server.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZES = {"": (1280, 800), "-phone": (390, 844)}
QUESTION = "Name three animals of a farm, and what they eat."
WAIT_MS = 240_000


def chat(page: Page, url: str, shoot: Callable[[str], None]) -> None:
    """The chat, and what is behind an answer."""
    page.goto(url)
    expect(page.locator("#composer")).to_be_focused()
    page.keyboard.press("Control+.")
    page.get_by_label("Max tokens").fill("40")
    page.get_by_role("button", name="Done").click()
    page.locator("#composer").fill(QUESTION)
    page.get_by_role("button", name="Send", exact=True).click()
    statistics = page.locator("button.statistics").last
    expect(statistics).to_be_visible()
    shoot("chat")
    statistics.click()
    expect(page.locator(".timeline-bar").first).to_be_visible()
    shoot("timeline")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Branch from a token").last.click()
    page.locator(".branch-token").nth(2).click()
    expect(page.locator(".branch-list li").first).to_be_visible()
    shoot("branch")
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Compare side by side").last.click()
    columns = page.locator(".compare-column")
    columns.nth(1).get_by_label("Temperature").fill("1.5")
    page.get_by_role("button", name="Run").click()
    for place in range(2):
        expect(columns.nth(place).get_by_role("button", name="Keep this one")).to_be_enabled()
    page.get_by_label("Show differences").check()
    shoot("compare")


def tools(page: Page, url: str, shoot: Callable[[str], None]) -> None:
    page.goto(url)
    expect(page.locator("#composer")).to_be_focused()
    page.keyboard.press("Control+.")
    page.get_by_text("Tools of the server").click()
    page.get_by_role("checkbox", name=re.compile("notes")).first.check()
    page.get_by_label("Custom fields").fill('{"tool_choice": "required", "parallel_tool_calls": false}')
    page.get_by_role("button", name="Done").click()
    page.locator("#composer").fill("What do my notes say about the grey mare?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()
    page.locator("#composer").focus()
    shoot("tools")


def live(page: Page, url: str, shoot: Callable[[str], None]) -> None:
    page.goto(f"{url}/#/live")
    expect(page.locator("[role=treeitem]").first).to_be_visible()
    shoot("live")


def replicas(page: Page, url: str, shoot: Callable[[str], None]) -> None:
    page.goto(f"{url}/#/live")
    section = page.get_by_role("region", name="Replicas", exact=True)
    expect(section.get_by_role("table")).to_have_count(2)
    speed = section.get_by_role("row").nth(1).get_by_role("cell").nth(3)
    expect(speed).to_have_text(re.compile(r"\d"))  # known after two samples
    section.evaluate("section => section.scrollIntoView()")
    shoot("replicas")


def playground(page: Page, url: str, shoot: Callable[[str], None]) -> None:
    page.goto(f"{url}/#/playground")
    page.get_by_label("Prompt").fill("Once upon a time a horse")
    page.get_by_label("Max tokens").fill("24")
    page.get_by_role("button", name="Complete").click()
    expect(page.get_by_role("region", name="Completion")).to_have_attribute("aria-busy", "false")
    shoot("playground")


PICTURES = {"chat": chat, "live": live, "playground": playground, "replicas": replicas, "tools": tools}
USUAL = ("chat", "live", "playground")


def _shoot(page: Page, folder: Path, ending: str, name: str) -> None:
    page.wait_for_timeout(400)  # animations end
    page.screenshot(path=folder / f"page-{name}{ending}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=USUAL)
    options = parser.parse_args()
    url: str = options.url.rstrip("/")
    expect.set_options(timeout=WAIT_MS)
    chromium = os.environ.get("PADDOCK_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for suffix, (width, height) in SIZES.items():
            for theme in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
                context.set_default_timeout(WAIT_MS)
                page = context.new_page()
                ending = f"{suffix}{'-dark' if theme == 'dark' else ''}.png"
                shoot = partial(_shoot, page, options.out, ending)
                for name in options.only:
                    PICTURES[name](page, url, shoot)
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
