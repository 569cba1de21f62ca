"""The page without a network, and after an upgrade."""

from __future__ import annotations

import functools
import http.server
import io
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from playwright.sync_api import Browser, Page, expect

import paddock
from tests.page.chatting import answered, ask, composer, entries
from tests.server import Server
from tests.tiers import full

pytestmark = full

BUILT = Path(paddock.__file__).parent / "page"
READY = "navigator.serviceWorker.ready.then(() => caches.keys()).then((names) => names.length)"

# The newest copy of the page is complete, and names this file.
STORED = """async (file) => {
    await navigator.serviceWorker.ready;
    const newest = (await caches.keys()).sort().at(-1);
    const page = await (await caches.open(newest)).match("./");
    return ((await page?.text()) ?? "").includes(file);
}"""

# The history has an answer that is complete.
IN_HISTORY = """(text) => new Promise((resolve, reject) => {
    const opened = indexedDB.open("paddock");
    opened.onerror = () => reject(opened.error);
    opened.onsuccess = () => {
        const messages = opened.result.transaction("messages").objectStore("messages").getAll();
        messages.onsuccess = () => {
            opened.result.close();
            const answers = messages.result.filter(({ role, open }) => role === "assistant" && !open);
            resolve(answers.some(({ content }) => content === text));
        };
    };
})"""


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Page]:
    """A browser that keeps the page."""
    context = browser.new_context()
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def send_head(self) -> io.BytesIO | BinaryIO | None:
        # By seconds: it would call a file unchanged that was written twice in one.
        del self.headers["If-Modified-Since"]
        return super().send_head()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # as Paddock
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A page that can be changed, with the service worker of the real one."""
    shutil.copy(BUILT / "page-worker.js", tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield tmp_path, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def version(folder: Path, number: int) -> None:
    (folder / "assets").mkdir(exist_ok=True)
    for old in (folder / "assets").iterdir():
        old.unlink()
    code = f"document.body.append('version {number}'); navigator.serviceWorker.register('./page-worker.js')"
    (folder / "assets" / f"index-{number}.js").write_text(code)
    page = f'<!doctype html><title>x</title><body></body><script src="./assets/index-{number}.js"></script>'
    (folder / "index.html").write_text(page)


def test_the_history_can_be_read_offline(visitor: Page, fake_server: Server) -> None:
    visitor.goto(fake_server.url)
    assert visitor.evaluate(READY) == 1
    ask(visitor, "say: to be read later")
    answered(visitor)
    visitor.wait_for_function(IN_HISTORY, arg="to be read later")  # it is shown a moment before
    visitor.reload()  # now through the worker
    expect(composer(visitor)).to_have_attribute("placeholder", "Message fake")
    visitor.context.set_offline(True)
    visitor.reload()
    expect(entries(visitor)).to_have_count(1)
    expect(visitor.locator(".banner")).to_contain_text("You can still read your chat history.")
    expect(visitor.get_by_role("article", name="Answer")).to_contain_text("to be read later")


def test_an_upgrade_is_shown_at_once(visitor: Page, site: tuple[Path, str]) -> None:
    folder, url = site
    for number in (1, 2, 3):
        version(folder, number)
        visitor.goto(url)
        expect(visitor.locator("body")).to_contain_text(f"version {number}")
        visitor.wait_for_function(STORED, arg=f"index-{number}.js")
        assert visitor.evaluate(READY) <= 2, "the version before, and no older one"
        visitor.context.set_offline(True)
        visitor.reload()
        expect(visitor.locator("body")).to_contain_text(f"version {number}")
        visitor.context.set_offline(False)
