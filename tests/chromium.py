"""The web console's pages in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

CHROMIUM: Final = "/usr/bin/chromium"
"""Debian's; .ci/run installs it."""

Scheme = Literal["light", "dark"]


class Chromium:
    """One browser; every page of it is watched."""

    def __init__(self, browser: Browser, url: str, key: str | None) -> None:
        """`key` is what pages sign in with; None where the server asks for none."""
        self._browser = browser
        self.url = url
        self._key = key
        self.complaints: list[str] = []
        """What the pages wrote to the console as an error, or did not catch."""
        self.hosts: set[str] = set()
        """`scheme://host:port` of all that was asked for."""
        self.answers: list[Response] = []

    def page(self, *, is_signed_in: bool = True, scheme: Scheme = "light") -> Page:
        """A page of a session of its own, which has shown nothing yet. It signs in by itself, or has yet to."""
        context: BrowserContext = self._browser.new_context(color_scheme=scheme, reduced_motion="reduce")
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.on("request", self._note_request)
        page.on("response", self._note_answer)
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if is_signed_in and self._key is not None:
            page.add_init_script(f"sessionStorage.setItem('pagefall.key', '{self._key}')")
        return page

    def open(self, view: str = "", *, is_signed_in: bool = True, scheme: Scheme = "light") -> Page:
        page = self.page(is_signed_in=is_signed_in, scheme=scheme)
        page.goto(f"{self.url}/{view}")
        return page

    def _note_request(self, request: Request) -> None:
        self.hosts.add("/".join(request.url.split("/")[:3]))

    def _note_answer(self, answer: Response) -> None:
        self.answers.append(answer)

    def _note_message(self, message: ConsoleMessage) -> None:
        # A status of 400 and above is logged by the browser itself: here, that a key is asked for.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)


@contextmanager
def running_chromium(url: str, *, key: str | None) -> Iterator[Chromium]:
    """On the server at `url`. At the end: no page of it has complained, or has asked another host for anything."""
    expect.set_options(timeout=15_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        chromium = Chromium(browser, url, key)
        yield chromium
        browser.close()
    assert chromium.complaints == []
    assert chromium.hosts == {url}
