"""The web page in a real browser: Debian's Chromium, or the one that $PADDOCK_CHROMIUM names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.server import Server

CHROMIUM = os.environ.get("PADDOCK_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Gone after these tests: Playwright's event loop would be in the way of tests that run one of their own."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with sync_playwright() as playwright:
        # Chromium's sandbox cannot be had by root or in most containers, and these pages are our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        # Time is no property of the page: the machine may be busy.
        expect.set_options(timeout=60_000)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A person's browser with nothing in it yet."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, service_workers="block")
    context.set_default_timeout(120_000)  # for the same reason
    # Titles would change while tests look for them. A sandboxed frame has no storage.
    context.add_init_script("try { localStorage.setItem('paddock.titles', 'off') } catch {}")
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A tab, in which no script of ours may fail."""
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    yield page
    assert failures == []


@pytest.fixture(scope="session")
def slow_server() -> Iterator[Server]:
    """A fake model that writes slowly enough to be interrupted."""
    with Server("-m", "fake:delay=0.03") as server:
        yield server
