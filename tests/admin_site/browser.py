"""A real browser that looks at the site, and everything that it should never have to say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, sync_playwright

from tests.admin_site.people import PASSWORD

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 740}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.fail("no Chromium here: apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Somebody who is logged in and notes what goes wrong in the browser."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.context, self.address = context, address
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._note_error)
        self.page.on("response", self._note_failure)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._note_foreign)

    def _note_error(self, said: ConsoleMessage) -> None:
        if said.type == "error" and "Failed to load resource" not in said.text:
            self.complaints.append(said.text)

    def _note_failure(self, response: Response) -> None:
        if response.status >= 400 and not response.url.endswith("/favicon.ico"):
            self.complaints.append(f"{response.status}: {response.url}")

    def _note_foreign(self, request: object) -> None:
        url = str(getattr(request, "url", ""))
        if not url.startswith((self.address, "data:", "about:")):
            self.complaints.append(f"asked elsewhere: {url}")

    def log_in(self, name: str) -> Visitor:
        """Enter as somebody."""
        self.page.goto(f"{self.address}/admin/login/")
        self.page.fill("#id_username", name)
        self.page.fill("#id_password", PASSWORD)
        self.page.click("[type=submit]")
        self.page.wait_for_url("**/admin/")
        return self

    def go(self, path: str = "", **query: str) -> Page:
        """Open one of the fleet's pages."""
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        self.page.goto(f"{self.address}/admin/atomic_fleet/{path}" + (f"?{asked}" if asked else ""))
        return self.page

    def said(self) -> str:
        """Return the messages that the page shows after an action."""
        return "\n".join(self.page.locator(".messagelist li").all_inner_texts())

    def violations(self) -> list[str]:
        """Return what axe finds wrong with the fleet's part of the page."""
        found = Axe().run(self.page, context=".fleet, .breadcrumbs, h1")
        return [f"{one['id']}: {[node['html'][:200] for node in one['nodes']]}" for one in found.response["violations"]]

    def overflow_px(self) -> int:
        """Return by how much the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
