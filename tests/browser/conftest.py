"""A real browser, and a page of it that is open on the runs of a world."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

OpenPage = Callable[..., AbstractContextManager[Page]]
BOUND_MS = 30_000


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium, without a window."""
    program = shutil.which("chromium")
    assert program is not None, "Chromium is missing: `apt-get install chromium`."
    expect.set_options(timeout=BOUND_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> OpenPage:
    """Opens a link in a browser of its own; at the end nothing may have gone wrong in the page."""

    @contextmanager
    def opened(link: str, width: int = 1280, scheme: str = "light") -> Iterator[Page]:
        context = browser.new_context(
            color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": 720}
        )
        context.set_default_timeout(BOUND_MS)
        faults: list[str] = []
        try:
            page = context.new_page()
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
            page.on("request", lambda sent: faults.append(sent.url) if "127.0.0.1" not in sent.url else None)
            page.goto(link)
            yield page
            assert faults == []
        finally:
            context.close()

    return opened
