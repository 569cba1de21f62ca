"""Measure how smoothly the page shows a 100 kB answer, at the end of a conversation of a thousand messages.

A small stub server serves the built page and streams a long answer, faster than a model would. Chromium's trace shows
how long each task blocked the page, and its CPU time: on a busy machine only the CPU time is meaningful.

    python tools/smoothness.py
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

PAGE = Path(__file__).parents[1] / "src" / "paddock" / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MIXED = """\
## Part {part}

Some *words* about **it**, with `code`, a [link](https://example.org) and a formula \\(x_{part}^2\\).

- one
- two, with more words than one

```python
def part_{part}(value: int) -> int:
    return value + {part}  # a comment
```

| a | b |
|---|---|
| {part} | 2 |

"""
ANSWERS = {
    "mixed": "".join(MIXED.replace("{part}", str(part)) for part in range(350)),
    "one block of code": "```python\n" + "value = compute(value)  # again\n" * 3200 + "```\n",
    "one list": "- an item of a list that goes on, with **bold** words\n" * 1900,
    "one paragraph": "words that go on and on and never come to an end, " * 2000,
}
PIECE, PAUSE = 24, 0.0015
"""Characters in a chunk, and seconds between two: about 15 kB/s, a few thousand tokens/s."""


class Play(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/models":
            meta = dict.fromkeys(("quantization", "size", "n_params", "n_ctx", "n_ctx_train"))
            card = {"id": "play", "kind": "generation", "status": {"value": "loaded"}, "meta": meta}
            card["architecture"] = {"input_modalities": ["text"]}
            self._answer(json.dumps({"data": [card]}).encode(), "application/json")
        elif self.path == "/models/sse":
            self._begin("text/event-stream", None)
            threading.Event().wait(300)
        else:
            file = PAGE / ("index.html" if self.path == "/" else self.path.lstrip("/"))
            self._answer(file.read_bytes(), TYPES.get(file.suffix, "application/octet-stream"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = ANSWERS[body["messages"][-1]["content"]]
        self._begin("text/event-stream", None)
        for start in range(0, len(answer), PIECE):
            choice = {"index": 0, "delta": {"content": answer[start : start + PIECE]}, "finish_reason": None}
            self._event({"choices": [choice]})
            time.sleep(PAUSE)
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def _answer(self, content: bytes, kind: str) -> None:
        self._begin(kind, len(content))
        self.wfile.write(content)

    def _begin(self, kind: str, length: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header(
            "Connection" if length is None else "Content-Length", "close" if length is None else str(length)
        )
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def conversation(count: int) -> bytes:
    words = MIXED.replace("{part}", "1")
    messages = [
        {
            "id": f"m{place}",
            "parent": f"m{place - 1}" if place else None,
            "role": "assistant" if place % 2 else "user",
            "created": place,
            "content": words if place % 2 else f"question {place}",
        }
        for place in range(count)
    ]
    whole = {"id": "long", "title": "Long", "created": 1, "updated": 1, "messages": messages}
    return json.dumps({"format": "paddock-conversations", "version": 1, "conversations": [whole]}).encode()


def measure(browser: Browser, url: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(url)
    with told(browser, page, "a thousand messages are imported"):
        file = {"name": "long.json", "mimeType": "application/json", "buffer": conversation(1000)}
        page.get_by_label("File to import").set_input_files(file)  # type: ignore[arg-type]
        page.locator(".entry a").wait_for()
    with told(browser, page, "they are opened"):
        page.locator(".entry a").click()
        page.locator("article").last.wait_for()
        page.wait_for_timeout(1000)
    for name in ANSWERS:
        with told(browser, page, f"100 kB, {name}"):
            page.locator("#composer").fill(name)
            page.locator("#composer").press("Enter")
            # Not `expect`, which describes the whole page while it waits, in tasks of the page.
            for busy in (1, 0):
                page.wait_for_function(f"document.querySelectorAll('[aria-busy=true]').length == {busy}", polling=250)
            page.wait_for_timeout(2000)
    with told(browser, page, "one scrolls up"):
        page.locator(".thread").evaluate("thread => thread.scrollTop = 0")
        page.wait_for_timeout(2000)


@contextmanager
def told(browser: Browser, page: Page, what: str) -> Iterator[None]:
    with tempfile.NamedTemporaryFile() as file:
        browser.start_tracing(page=page, path=file.name, categories=["toplevel"])
        yield
        browser.stop_tracing()
        events = json.loads(Path(file.name).read_bytes())["traceEvents"]
    threads = [
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    ]
    tasks = [
        (event["dur"] / 1000, event.get("tdur", 0) / 1000)
        for event in events
        if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) in threads and "dur" in event
    ]
    long = sum(computing > 50 for _, computing in tasks)
    computing = max(computing for _, computing in tasks)
    print(
        f"{what}: the longest task computed for {computing:.0f} ms and took {max(held for held, _ in tasks):.0f} ms; "
        f"{long} computed for more than 50 ms",
        flush=True,
    )


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Play)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        measure(browser, f"http://127.0.0.1:{server.server_port}/")
        browser.close()


if __name__ == "__main__":
    main()
