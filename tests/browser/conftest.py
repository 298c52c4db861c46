"""A real browser on the page, over a scripted engine. Where there is no Chromium these tests are skipped."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import BrowserContext
from playwright.sync_api import Page
from playwright.sync_api import expect
from playwright.sync_api import sync_playwright

from jaxfold.api.uploads.store import UploadSettings
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.scripted_engine import ScriptedEngine

CHROMIUM = os.environ.get("JAXFOLD_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
TIMEOUT_MS = 30_000
POLICY_AT_WORK = ("Failed to load resource", "violates the following Content Security Policy", "requires 'Trusted")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: scripts/browser.sh installs Debian's")
    with sync_playwright() as playwright:
        # The sandbox needs rights that a container does not have; the pages are our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    engine = ScriptedEngine(reply_ids("Hello, **world**!"), cached_tokens=10)
    with running(engine, template=THINKING, webui=True, uploads=UploadSettings(folder=tmp_path / "up")) as server:
        yield server


@pytest.fixture
def context(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    """A browser without a past. What a page prints as an error, or throws, fails the test."""
    # The browser also tells of what its policy stopped while hostile markup was only being read.
    expected = POLICY_AT_WORK if "hostile" in request.node.nodeid else ("Failed to load resource",)
    context = browser.new_context(base_url=server.url, accept_downloads=True, viewport={"width": 1200, "height": 800})
    context.set_default_timeout(TIMEOUT_MS)
    faults: list[str] = []
    context.on("weberror", lambda error: faults.append(str(error.error)))
    context.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    yield context
    context.close()
    assert not [fault for fault in faults if not any(words in fault for words in expected)]


@pytest.fixture
def page(context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto("/")
    expect(page.locator("#model-name")).to_have_text("scripted", timeout=TIMEOUT_MS)
    return page
