"""The web console in a real Chromium, on a router and its two workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import httpx
import pytest
from playwright.sync_api import Page, Route, expect
from tests.chromium import Chromium, running_chromium
from tests.real_server import RealServer
from tests.tiny_models import make_tiny, make_tiny_tokenizer

HEAD: Final = "What is the capital of France? The capital of France is Paris. "


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Round robin, so that both workers have something to show."""
    folder = tmp_path_factory.mktemp("router")
    tokenizer = make_tiny_tokenizer(make_tiny("llama", folder / "tiny"))
    server = RealServer(
        folder / "log",
        *("--model-path", str(tokenizer), "--max-total-tokens", "2048", "--context-length", "1024"),
        *("--compile", "off", "--dp-size", "2", "--load-balance-method", "round_robin"),
    )
    yield server.url
    server.interrupt()
    assert server.wait() == 0, server.log


@pytest.fixture(scope="module")
def chromium(url: str) -> Iterator[Chromium]:
    with running_chromium(url, key=None) as chromium:
        yield chromium


def ask(url: str, question: str) -> str:
    """The worker that answered."""
    message = {"role": "user", "content": HEAD + question}
    body = {"model": "tiny", "messages": [message], "max_tokens": 2}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-pagefall-worker"]


def cell(page: Page, worker: str, column: int) -> str:
    return page.locator("tbody tr", has_text=worker).locator("td").nth(column).inner_text()


def test_all_workers_are_shown_and_each_can_be_looked_at(chromium: Chromium) -> None:
    assert {ask(chromium.url, question) for question in "1234"} == {"w0", "w1"}
    page = chromium.open("#/workers")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.locator(".pill")).to_have_text(["healthy", "healthy"])
    expect(page.get_by_text("2 workers, 0 requests running")).to_be_visible()
    assert all(int(cell(page, worker, 4)) > 0 for worker in ("w0", "w1"))
    rows.last.get_by_role("link").click()
    expect(page.locator("#worker")).to_have_value("w1")
    expect(page.get_by_role("link", name="Overview")).to_have_attribute("aria-current", "page")
    expect(page.get_by_text("Device memory", exact=True)).to_be_visible()
    page.reload()
    expect(page.locator("#worker")).to_have_value("w1")


def test_the_requests_of_the_chosen_worker_are_listed_and_it_is_said_why_they_were_sent_there(
    chromium: Chromium,
) -> None:
    asked = [ask(chromium.url, question) for question in "567"]
    page = chromium.open("#/requests")
    expect(page.locator("tbody tr")).not_to_have_count(0)
    page.locator("#worker").select_option("w0")
    listed = httpx.get(f"{chromium.url}/cache/requests?worker=w0").json()["requests"]
    assert 0 < asked.count("w0") <= len(listed)
    expect(page.locator("tbody tr")).to_have_count(len(listed))
    page.locator("tbody a").first.click()
    expect(page.get_by_role("heading", name="Sent to w0")).to_be_visible()
    expect(page.locator(".detail .misses").first).to_contain_text("w0:")


def test_the_tree_and_the_diagnosis_are_the_chosen_workers_and_the_chat_is_everybodys(chromium: Chromium) -> None:
    page = chromium.open("#/tree")
    expect(page.locator(".branch").first).to_be_visible()
    page.get_by_role("link", name="Diagnosis").click()
    page.get_by_role("button", name="Diagnose").click()
    expect(page.locator(".verdict")).to_contain_text("hit rate")
    page.get_by_role("link", name="Chat").click()
    page.get_by_text("Settings").click()
    page.get_by_label("Longest answer, in tokens").fill("4")
    page.get_by_label("Your message").fill("Hello")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.assistant .note a")).to_have_count(1)


def test_a_worker_that_shows_nothing_hides_none_of_the_others(chromium: Chromium, url: str) -> None:
    page = chromium.page()

    def refuse(route: Route) -> None:
        body = json.dumps({"error": {"message": "w0: no answer in 10 seconds"}})
        route.fulfill(status=503, body=body, content_type="application/json")

    page.route("**/cache/stats?*worker=w0*", refuse)
    page.goto(f"{url}/#/workers")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.locator("#worker").select_option("w0")
    expect(page.get_by_text("w0 shows no statistics: w0: no answer in 10 seconds")).to_be_visible()
    tokens = page.locator("tbody tr", has_text="w1").locator("td").nth(4)
    before = tokens.inner_text()
    assert {ask(url, question) for question in "89"} == {"w0", "w1"}
    expect(tokens).not_to_have_text(before)
    page.locator("#worker").select_option("w1")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(page.get_by_text("shows no statistics")).to_be_hidden()


def test_a_worker_that_drains_is_shown_so_and_one_that_is_gone_is_not_shown(chromium: Chromium) -> None:
    page = chromium.open("#/workers")
    page.locator("#worker").select_option("w1")
    httpx.post(f"{chromium.url}/router/workers/w1/drain").raise_for_status()
    expect(page.locator("tbody tr", has_text="w1").locator(".pill")).to_have_text("draining")
    expect(page.locator("#worker").locator("option")).to_have_text(["w0", "w1 (draining)"])
    expect(page.locator("#worker")).to_have_value("w1")
    page.locator("#worker").select_option("w0")
    page.locator("#worker").select_option("w1")
    expect(page.locator("#worker")).to_have_value("w1")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    httpx.delete(f"{chromium.url}/router/workers/w1").raise_for_status()
    expect(page.locator("#worker")).to_have_value("w0")
    expect(page.get_by_text("live", exact=True)).to_be_visible()


def test_on_a_phone_nothing_is_wider_than_the_screen(chromium: Chromium) -> None:
    page = chromium.page()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{chromium.url}/#/workers")
    expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
