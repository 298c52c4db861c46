"""Whatever a model writes, the page runs none of it, loads nothing for it and does not let it dress up as the page."""

from playwright.sync_api import Page
from playwright.sync_api import expect

from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.browser.test_page import send
from tests.browser.test_page import settled

HOSTILE = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "<svg onload='window.hit = 1'><script>window.hit = 1</script></svg>",
    "<a href='javascript:window.hit = 1'>click</a>",
    "[click](javascript:window.hit=1)",
    "[click](JaVaScRiPt:window.hit=1 'x')",
    "[click](data:text/html,<script>window.opener.hit=1</script>)",
    "[click](<vbscript:hit>)",
    "![x](https://evil.example/leak.png)",
    "![x](x 'y\" onerror=\"window.hit=1')",
    "<iframe src='javascript:parent.hit = 1'></iframe>",
    "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
    "<object data='javascript:window.hit = 1'></object><embed src='javascript:window.hit = 1'>",
    "<form action='javascript:window.hit = 1'><button id='send'>click</button></form>",
    "<math><mi xlink:href='javascript:window.hit = 1'>click</mi></math>",
    "<details open ontoggle='window.hit = 1'>click</details>",
    "<style>body { display: none } @import url(https://evil.example/a.css);</style>",
    "<link rel=stylesheet href=https://evil.example/a.css><base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<div style='position:fixed;inset:0;background:url(https://evil.example/x)'>click</div>",
    "<div id='input' class='message user call primary'>click</div>",
    "<audio src=x onerror='window.hit = 1'></audio><video><source onerror='window.hit = 1'></video>",
    "```html\n<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>\n```",
    '```"><img src=x onerror=window.hit=1>\ncode\n```',
    "`<img src=x onerror=window.hit=1>`",
    "<p/onclick=window.hit=1>click",
    "<template><img src=x onerror='window.hit = 1'></template>",
    "<noscript><p title='</noscript><img src=x onerror=window.hit=1>'></noscript>",
    "<svg></p><style><a id='</style><img src=1 onerror=window.hit=1>'>",
    "<form><math><mtext></form><form><mglyph><style></math><img src onerror=window.hit=1>",
    "<think>\n<img src=x onerror='window.hit = 1'>\n</think>\n\nok",
    "<x-a autofocus tabindex=1 onfocus='window.hit = 1'>click</x-a>",
    "|a|\n|-|\n|<img src=x onerror=window.hit=1>|",
    "[ref]: javascript:window.hit=1\n\n[click][ref]",
    "<https://evil.example/> <javascript:window.hit=1>",
)
FORBIDDEN = "script, style, iframe, object, embed, form, input, img, svg, link, meta, base, audio, video, template"


def test_hostile_replies(page: Page, server: Server) -> None:
    foreign: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(server.url) else foreign.append(request.url))
    for number, text in enumerate(HOSTILE, start=1):
        server.engine.script = reply_ids(text)
        send(page, "Show me")
        settled(page, number)
        body = page.locator(".message.assistant").last.locator(".text")
        assert body.locator(FORBIDDEN).count() == 0, text
        assert body.locator("[style], [id], [name], [src], .message, .primary, .call").count() == 0, text
        handlers = "nodes => nodes.flatMap(n => [...n.attributes]).filter(a => a.name.startsWith('on')).length"
        assert body.locator("*").evaluate_all(handlers) == 0, text
        for link in body.locator("a").all():
            target = link.get_attribute("href")
            assert target is None or target.startswith(("http://", "https://", "mailto:")), text
            assert link.get_attribute("rel") == "noopener noreferrer nofollow"
        for spot in body.get_by_text("click", exact=True).all():
            if spot.evaluate("n => !n.closest('a[href]')"):
                spot.click(force=True)
        assert page.evaluate("window.hit") is None, text
    assert page.url.rstrip("/") == server.url
    assert not foreign
    expect(page.locator("#input")).to_have_count(1)
    expect(page.locator("#send")).to_be_visible()


def test_hostile_titles_files_and_tools(page: Page, server: Server) -> None:
    bad = "<img src=x onerror='window.hit=1'>"
    page.click("#settings")
    page.fill("#system", bad)
    send(page, bad)
    settled(page)
    expect(page.locator(".chat .open")).to_have_text(bad)
    expect(page.locator(".message.user .text")).to_have_text(bad)
    page.reload()
    settled(page)
    assert page.evaluate("window.hit") is None
    assert page.locator(".message img, .chat img").count() == 0


def test_the_policy_stops_what_would_get_through(page: Page) -> None:
    """Even code that found a way into the page's own elements is not run."""
    blocked = page.evaluate("""() => {
      const tries = {};
      const attempt = (name, work) => { try { work(); tries[name] = false; } catch { tries[name] = true; } };
      attempt("innerHTML", () => { document.createElement("div").innerHTML = "<b>x</b>"; });
      const script = document.createElement("script");
      attempt("script", () => { script.text = "window.hit = 1"; document.body.append(script); });
      return tries;
    }""")
    assert blocked == {"innerHTML": True, "script": True}
    assert page.evaluate("window.hit") is None
