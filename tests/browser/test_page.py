"""What a person does with the page: send, watch, stop, edit, attach, reload, two tabs, a phone."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext
from playwright.sync_api import Page
from playwright.sync_api import expect

from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.keys import keys_of
from jaxfold.runtime.api import QueueFullError
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.test_uploads import pdf
from tests.api.test_uploads import png
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

ENDLESS = "word " * 100_000


def send(page: Page, text: str) -> None:
    page.fill("#input", text)
    page.press("#input", "Enter")


def settled(page: Page, replies: int = 1) -> None:
    """The last of so many replies has ended."""
    expect(page.locator(".message.assistant:not(.running)")).to_have_count(replies)
    expect(page.locator("#send")).to_be_visible()


def prompt_of(server: Server) -> str:
    return ByteTokenizer().decode(server.last_request().prompt_ids, skip_special=False)


def endless(server: Server) -> None:
    server.engine.script = lambda request: iter(reply_ids(ENDLESS))
    server.engine.delay_s = 0.02


def test_send_and_read(page: Page, server: Server) -> None:
    send(page, "Hi there")
    settled(page)
    reply = page.locator(".message.assistant")
    expect(reply.locator(".text")).to_have_text("Hello, world!")
    expect(reply.locator("strong")).to_have_text("world")
    figures = reply.locator(".figures")
    expect(figures).to_have_text(re.compile(r"\d+ tokens · [\d.]+ tok/s · [\d.]+ s · prompt \d+, \d+ % from the cache"))
    expect(page.locator("#meter-text")).to_have_text(re.compile(r"^\d+ of 65,536$"))
    expect(page.locator(".chat .open")).to_have_text("Hi there")
    assert "Hi there" in prompt_of(server)
    send(page, "And again")
    settled(page, 2)
    assert "Hello, **world**!" in prompt_of(server)


def test_thinking_is_folded(page: Page, server: Server) -> None:
    server.engine.script = reply_ids("<think>\nLet me see.\n</think>\n\nYes.")
    send(page, "Is it?")
    settled(page)
    expect(page.locator(".assistant .thought").first).not_to_be_visible()
    page.click(".assistant .thinking summary")
    expect(page.locator(".assistant .thought").first).to_have_text("Let me see.")
    expect(page.locator(".message.assistant .text")).to_have_text("Yes.")
    page.uncheck("#think")
    send(page, "And now?")
    settled(page, 2)
    assert prompt_of(server).endswith("</think>\n\n")


def test_streaming_and_stop(page: Page, server: Server) -> None:
    endless(server)
    send(page, "Go on")
    expect(page.locator(".message.assistant.running .text")).to_contain_text("word")
    page.click("#stop")
    settled(page)
    expect(page.locator(".note:visible")).to_have_text("Stopped.")
    assert server.engine.wait_idle()
    assert server.engine.cancelled
    send(page, "More")
    expect(page.locator(".message.assistant.running .text")).to_contain_text("word")
    page.keyboard.press("Escape")
    settled(page, 2)
    assert server.engine.wait_idle()


def test_edit_a_question(page: Page, server: Server) -> None:
    for number, text in enumerate(("First", "Second"), start=1):
        send(page, text)
        settled(page, number)
    message = page.locator(".message.user").first
    message.hover()
    message.get_by_role("button", name="Edit").click()
    message.get_by_label("Edit message").fill("Changed")
    message.get_by_role("button", name="Send again").click()
    settled(page, 1)
    expect(page.locator(".message.user")).to_have_count(1)
    assert "Changed" in prompt_of(server) and "Second" not in prompt_of(server)
    page.press("#input", "ArrowUp")
    expect(message.get_by_label("Edit message")).to_be_focused()


def test_edit_and_delete_a_reply(page: Page, server: Server) -> None:
    send(page, "First")
    settled(page)
    reply = page.locator(".message.assistant")
    reply.hover()
    reply.get_by_role("button", name="Edit").click()
    reply.get_by_label("Edit message").fill("My own words")
    reply.get_by_role("button", name="Save").click()
    expect(reply.locator(".text")).to_have_text("My own words")
    send(page, "Next")
    settled(page, 2)
    assert "My own words" in prompt_of(server)
    reply.first.hover()
    reply.first.get_by_role("button", name="Delete").click()
    expect(reply).to_have_count(1)


def test_regenerate_takes_another_seed(page: Page, server: Server) -> None:
    send(page, "First")
    settled(page)
    assert server.last_request().sampling.seed is None
    reply = page.locator(".message.assistant")
    reply.hover()
    reply.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".message.assistant")).to_have_count(1)
    settled(page)
    assert server.last_request().sampling.seed is not None
    assert len(server.engine.requests) == 2


def test_settings_reach_the_request(page: Page, server: Server) -> None:
    page.click("#settings")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Longest reply, in tokens").fill("4")
    page.fill("#system", "Be brief.")
    page.fill("#tools", "not json")
    expect(page.locator("#tools-error")).to_be_visible()
    send(page, "Hi")
    expect(page.locator(".message")).to_have_count(0)
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    page.fill("#tools", json.dumps([tool]))
    expect(page.locator("#tools-error")).to_be_hidden()
    send(page, "Hi")
    settled(page)
    request = server.last_request()
    assert (request.sampling.temperature, request.sampling.top_k, request.max_tokens) == (0.5, 40, 4)
    assert "Be brief." in prompt_of(server) and '"name": "add"' in prompt_of(server)
    expect(page.locator(".note:visible")).to_contain_text("cut at the limit")
    page.reload()
    page.click("#settings")
    expect(page.get_by_label("Temperature")).to_have_value("0.5")
    page.click("#reset")
    expect(page.get_by_label("Temperature")).to_have_value("")


def test_tool_calls_and_their_results(page: Page, server: Server) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 4}}\n</tool_call>'
    server.engine.script = lambda request: reply_ids("Eight." if b"tool\n8" in bytes(
        i for i in request.prompt_ids if i < 256) else call)  # fmt: skip
    page.click("#settings")
    page.fill(
        "#tools", json.dumps([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}])
    )
    send(page, "4+4?")
    settled(page)
    expect(page.locator(".call-name")).to_have_text("Calls add")
    expect(page.locator(".call pre")).to_have_text(re.compile(r'"a": 4'))
    page.get_by_label("Result of add").fill("8")
    page.get_by_role("button", name="Send result").click()
    settled(page, 2)
    expect(page.locator(".message.assistant .text").last).to_have_text("Eight.")
    assert '"arguments": {"a": 4}' in prompt_of(server)


def test_files(page: Page, server: Server, tmp_path: Path) -> None:
    for name, data in (("notes.txt", b"the notes"), ("table.csv", b"a,b\n1,2\n"), ("report.pdf", pdf("The report"))):
        (tmp_path / name).write_bytes(data)
    page.set_input_files("#files", [tmp_path / "notes.txt", tmp_path / "table.csv", tmp_path / "report.pdf"])
    expect(page.locator("#chips .file.ready")).to_have_count(3)
    send(page, "Read these")
    settled(page)
    expect(page.locator(".message.user .file")).to_have_count(3)
    prompt = prompt_of(server)
    for text in ("[File: notes.txt]\nthe notes", "[File: table.csv]\na,b\n1,2", "The report", "Read these"):
        assert text in prompt
    expect(page.locator("#chips .file")).to_have_count(0)


def test_files_that_the_model_cannot_read(page: Page, server: Server, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(png(4, 1))
    (tmp_path / "fake.png").write_bytes(b"no picture")
    page.set_input_files("#files", [tmp_path / "photo.png"])
    expect(page.locator("#chips .bad")).to_have_count(1)
    send(page, "Look")
    expect(page.locator("#notice")).to_contain_text("does not take image files")
    assert not server.engine.requests
    page.get_by_role("button", name="Remove photo.png").click()
    page.set_input_files("#files", [tmp_path / "fake.png"])
    expect(page.locator("#notice")).to_contain_text("is not an image file")


def test_a_dropped_file(page: Page) -> None:
    script = """() => {
      const data = new DataTransfer();
      data.items.add(new File(["dropped text"], "drop.txt", {type: "text/plain"}));
      window.dispatchEvent(new DragEvent("dragenter", {dataTransfer: data}));
      window.dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
    }"""
    page.evaluate(script)
    expect(page.locator("#chips .file.ready")).to_have_text(re.compile("drop.txt"))


def test_reload_keeps_the_chat(page: Page, server: Server) -> None:
    send(page, "Remember this")
    settled(page)
    page.reload()
    expect(page.locator(".message.user .text")).to_have_text("Remember this")
    expect(page.locator(".message.assistant .text")).to_have_text("Hello, world!")
    send(page, "Go on")
    settled(page, 2)
    assert "Remember this" in prompt_of(server)


def test_reload_in_the_middle_of_a_reply(page: Page, server: Server) -> None:
    endless(server)
    send(page, "Go on")
    expect(page.locator(".message.assistant.running .text")).to_contain_text("word word word word word word word word")
    page.wait_for_timeout(1500)
    page.reload()
    assert server.engine.wait_idle()
    expect(page.locator(".message.assistant .text")).to_contain_text("word")
    expect(page.locator(".note:visible")).to_have_text("Stopped.")


def test_two_tabs(page: Page, context: BrowserContext, server: Server) -> None:
    send(page, "From the first")
    settled(page)
    other = context.new_page()
    other.goto("/")
    expect(other.locator(".message")).to_have_count(0)
    expect(other.locator(".chat .open")).to_have_text("From the first")
    send(other, "From the second")
    settled(other)
    expect(page.locator(".chat .open")).to_have_count(2)
    other.get_by_role("button", name="From the first", exact=True).click()
    expect(other.locator(".message.user .text")).to_have_text("From the first")
    send(other, "More")
    settled(other, 2)
    # The first tab has the same chat open and follows.
    expect(page.locator(".message.user")).to_have_count(2)


def test_chats_can_be_renamed_searched_and_deleted(page: Page) -> None:
    for text in ("Apples", "Pears"):
        page.click("#new-chat")
        send(page, text)
        settled(page)
    expect(page.locator(".chat .open")).to_have_text(["Pears", "Apples"])
    page.locator(".chat", has_text="Apples").hover()
    page.get_by_role("button", name="Rename Apples").click()
    page.get_by_label("Title").fill("Oranges")
    page.keyboard.press("Enter")
    expect(page.locator(".chat .open")).to_have_text(["Pears", "Oranges"])
    page.fill("#search", "apples")
    expect(page.locator(".chat .open")).to_have_text(["Oranges"])
    page.fill("#search", "")
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator(".chat", has_text="Pears").hover()
    page.get_by_role("button", name="Delete Pears").click()
    expect(page.locator(".chat .open")).to_have_text(["Oranges"])


def test_leaving_a_chat_does_not_end_its_reply(page: Page, server: Server) -> None:
    server.engine.script = reply_ids("word " * 60)
    server.engine.delay_s = 0.005
    send(page, "Long")
    expect(page.locator(".message.assistant.running .text")).to_contain_text("word")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator("#send")).to_be_visible()
    assert server.engine.wait_idle()
    page.get_by_role("button", name="Long", exact=True).click()
    settled(page)
    expect(page.locator(".message.assistant .text")).to_have_text(("word " * 60).strip())


@pytest.mark.parametrize("kind", ["md", "json"])
def test_export(page: Page, kind: str) -> None:
    send(page, "Say hello")
    settled(page)
    with page.expect_download() as download:
        page.select_option("#export", kind)
    assert download.value.suggested_filename == f"Say hello.{kind}"
    text = Path(download.value.path()).read_text()
    assert "Say hello" in text and "Hello, **world**!" in text


def test_errors_are_shown_and_the_next_turn_works(page: Page, server: Server) -> None:
    server.engine.refuse = QueueFullError("the queue is full")
    send(page, "Hi")
    expect(page.locator(".note.error:visible")).to_have_text("the queue is full")
    server.engine.refuse = None
    server.engine.fail_after = 3
    send(page, "Hi")
    expect(page.locator(".note.error:visible")).to_have_count(2)
    server.engine.fail_after = None
    send(page, "Hi")
    settled(page, 3)
    expect(page.locator(".message.assistant .text").last).to_have_text("Hello, world!")


def test_a_server_that_was_started_again(page: Page, server: Server) -> None:
    send(page, "Hi")
    settled(page)
    session = page.evaluate("fetch('/api/sessions', {method: 'POST', body: '{}', headers: {'Content-Type': "
                            "'application/json'}}).then((r) => r.json())")["sessionId"]  # fmt: skip
    assert server.request("DELETE", f"/api/sessions/{session}").status == 200
    page.evaluate("import('/webui/api.js').then((api) => api.endSession())")
    send(page, "Hi")
    settled(page, 2)


def test_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    expect(page.locator("#sidebar")).not_to_be_in_viewport()
    send(page, "Hello from a phone " * 10)
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.click("#menu")
    expect(page.locator("#sidebar")).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(page.locator("#sidebar")).not_to_be_in_viewport()
    page.click("#settings")
    expect(page.locator("#panel")).to_be_in_viewport()


def test_dark_and_light(page: Page) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    page.click("#theme")
    light = page.evaluate(back)
    page.click("#theme")
    assert page.evaluate(back) != light
    page.reload()
    assert page.evaluate(back) != light


def test_copy(page: Page, context: BrowserContext, server: Server) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    server.engine.script = reply_ids("Run:\n\n```python\nprint(1)\n```\n")
    send(page, "Code")
    settled(page)
    expect(page.locator(".hljs-built_in")).to_have_text("print")
    page.locator("pre .copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"


def test_a_key_is_asked_for(context: BrowserContext) -> None:
    keys = KeyRing(keys_of(["the-key-of-this-test"], "tests"))
    with running(ScriptedEngine(reply_ids("ok")), webui=True, keys=keys) as locked:
        page = context.new_page()
        page.goto(locked.url)
        page.fill("#key-input", "the-key-of-this-test")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#model-name")).to_have_text("scripted")
        send(page, "Hi")
        settled(page)
        expect(page.locator(".message.assistant .text")).to_have_text("ok")
        page.close()
