"""Measure how smoothly the page shows a 100 kB answer, at the end of a conversation of a thousand messages.

A small server plays Paddock: it serves the built page and streams a long answer, faster than a model would. Chromium
tells of every task that held up the page for more than 50 ms (PerformanceObserver, `longtask`).

    python tools/smoothness.py
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

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
"""Characters in a chunk, and seconds between two: some 15 kB a second, a few thousand tokens."""


class Play(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/models":
            meta = dict.fromkeys(("quantization", "size", "n_params", "n_ctx", "n_ctx_train"))
            card = {"id": "play", "kind": "generation", "status": {"value": "loaded"}, "meta": meta}
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


def measure(page: Page, url: str) -> None:
    page.add_init_script(
        "window.held = []; new PerformanceObserver(list => held.push(...list.getEntries().map(task => task.duration)))"
        ".observe({ type: 'longtask', buffered: true })"
    )
    page.goto(url)
    file = {"name": "long.json", "mimeType": "application/json", "buffer": conversation(1000)}
    page.get_by_label("File to import").set_input_files(file)  # type: ignore[arg-type]
    page.locator(".entry a").wait_for()
    tell(page, "import of a thousand messages")
    page.locator(".entry a").click()
    page.locator("article").last.wait_for()
    tell(page, "opening them")
    for name in ANSWERS:
        page.locator("#composer").fill(name)
        page.locator("#composer").press("Enter")
        expect(page.locator("article").last).to_have_attribute("aria-busy", "true")
        expect(page.locator("article").last).to_have_attribute("aria-busy", "false", timeout=120_000)
        page.wait_for_timeout(2000)
        tell(page, f"100 kB, {name}")
    page.get_by_role("region", name="Messages").evaluate("thread => thread.scrollTop = 0")
    page.wait_for_timeout(2000)
    tell(page, "scrolling up")


def tell(page: Page, what: str) -> None:
    held = page.evaluate("held.splice(0)")
    print(f"{what}: {len(held)} tasks over 50 ms, the longest {max(held, default=0):.0f} ms", flush=True)


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no Chromium here")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Play)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        measure(browser.new_page(viewport={"width": 1280, "height": 800}), f"http://127.0.0.1:{server.server_port}/")
        browser.close()


if __name__ == "__main__":
    main()
