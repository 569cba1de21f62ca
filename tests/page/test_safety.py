"""Nothing that a model writes does anything, and nothing is asked of another host."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Page, Request, expect

from tests.page.chatting import answered, ask, text_of
from tests.server import Server
from tests.tiers import full

pytestmark = full

HOSTILE = """\
say: <script>window.harmed = 1</script>
<img src="https://elsewhere.example/a.png" onerror="window.harmed = 2" alt="a picture">
<svg onload="window.harmed = 3"><image href="https://elsewhere.example/b.png"/></svg>
<iframe src="https://elsewhere.example/c"></iframe><style>body { display: none }</style>

![another](https://elsewhere.example/d.png) [press me](javascript:window.harmed=4) [press](data:text/html,x)
<a href="https://elsewhere.example/e" onclick="window.harmed=5" target="_self" class="primary">go</a>

<p style="position:fixed;inset:0;background:url(https://elsewhere.example/f)">covered</p>
<form action="https://elsewhere.example/g"><input name="key"><button>Send</button></form>
<math><mtext><table><mglyph><style><img src=https://elsewhere.example/h onerror=window.harmed=6>
</style></mglyph></table></mtext></math>

```html
<script>window.harmed = 7</script>
```

$\\href{javascript:window.harmed=8}{x}$ and $$\\includegraphics{https://elsewhere.example/i.png}$$

the end"""


def test_an_answer_does_nothing_but_show(page: Page, fake_server: Server) -> None:
    strangers: list[str] = []

    def look(request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(fake_server.url).netloc and not request.url.startswith("blob:"):
            strangers.append(request.url)

    page.on("request", look)
    page.goto(fake_server.url)
    ask(page, HOSTILE)
    answer = text_of(answered(page))
    expect(answer).to_contain_text("the end")
    expect(answer.get_by_text("window.harmed = 7")).to_be_visible()
    page.reload()
    answer = text_of(answered(page))
    expect(answer).to_contain_text("the end")
    assert page.evaluate("window.harmed") is None
    assert strangers == []
    for tag in ("script", "img", "svg image", "iframe", "style", "form", "input", "p[style]", "[onclick]", "a.primary"):
        expect(answer.locator(tag)).to_have_count(0)
    for link in answer.locator("a[href]").all():
        assert (link.get_attribute("href") or "").startswith("https://elsewhere.example/")
        assert "noopener" in (link.get_attribute("rel") or "")
        assert link.get_attribute("target") == "_blank"
    expect(answer.get_by_role("link", name="a picture")).to_be_visible()
    expect(answer.get_by_role("link", name="another")).to_be_visible()
