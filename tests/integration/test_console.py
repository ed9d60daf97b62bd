"""The web console in a real Chromium, on a real server that asks for a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, Route, expect
from tests.chromium import Chromium, Scheme, running_chromium
from tests.real_server import RealServer
from tests.tiny_models import make_tiny, make_tiny_tokenizer

KEY: Final = "sk-console"
HEAD: Final = "What is the capital of France? The capital of France is Paris. "
HOSTILE: Final = '\u202e<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>'


class Server:
    """A tiny model with tiers. It can end, and come back at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        tokenizer = make_tiny_tokenizer(make_tiny("llama", folder / "tiny"))
        self._flags = (
            *("--model-path", str(tokenizer), "--max-total-tokens", "4096", "--context-length", "2048"),
            *("--compile", "off", "--api-key", KEY, "--enable-hierarchical-cache"),
        )
        self._process = RealServer(folder / "first.log", *self._flags)
        self.url = self._process.url

    def stop(self) -> None:
        self._process.interrupt()
        assert self._process.wait() == 0, self._process.log

    def start_again(self) -> None:
        self._process = RealServer(self._folder / "second.log", *self._flags, port=self._process.port)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("console"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def chromium(server: Server) -> Iterator[Chromium]:
    with running_chromium(server.url, key=KEY) as chromium:
        yield chromium


def say(page: Page, text: str) -> None:
    """Sends `text` in the chat, and waits for the whole answer."""
    answers = page.locator(".turn.assistant .note a")
    num_before = answers.count()
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")
    expect(answers).to_have_count(num_before + 1)


def open_chat(chromium: Chromium) -> Page:
    """Short answers are enough."""
    page = chromium.open("#/chat")
    page.get_by_text("Settings").click()
    page.get_by_label("Longest answer, in tokens").fill("8")
    return page


def test_the_first_load_is_small_and_shows_the_server(chromium: Chromium) -> None:
    page = chromium.page()
    chromium.answers.clear()
    page.goto(chromium.url)
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="Hit rate by tier")).to_be_visible()
    tiers = page.locator(".tier")
    expect(tiers).to_have_count(3)
    expect(tiers.nth(0)).to_contain_text("of 4,096 tokens")
    expect(tiers.nth(1)).to_contain_text("of 8,192 tokens")
    expect(tiers.nth(2)).to_contain_text("Not there")
    assert {answer.status for answer in chromium.answers} == {200}
    assert sum(len(answer.body()) for answer in chromium.answers) < 200_000


def test_the_keyboard_alone_reaches_every_view(chromium: Chromium) -> None:
    page = chromium.open()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    for view in ("Overview", "Requests", "Tree", "Diagnosis", "Chat"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name=view)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your message")).to_be_focused()


def test_a_server_with_a_key_asks_for_it_and_says_when_it_is_wrong(chromium: Chromium) -> None:
    page = chromium.open(is_signed_in=False)
    key = page.get_by_label("Key", exact=True)
    expect(key).to_be_focused()
    expect(page.get_by_role("alert")).to_be_empty()
    key.fill("sk-wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Incorrect API key")
    key.fill(KEY)
    page.keyboard.press("Enter")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(key).to_be_hidden()
    page.reload()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(key).to_be_visible()


def test_an_answer_streams_and_the_second_ask_is_a_hit(chromium: Chromium) -> None:
    page = open_chat(chromium)
    say(page, f"{HEAD}Is it large?")
    notes = page.locator(".turn.assistant .note")
    expect(notes.first).to_contain_text("prompt tokens computed")
    expect(notes.first).to_contain_text("8 tokens written, cut at the limit")
    expect(page.locator(".turn.assistant .text").first).not_to_be_empty()
    page.get_by_role("button", name="New conversation").click()
    say(page, f"{HEAD}Is it large?")
    expect(notes).to_have_text(re.compile(r"from the cache: \d+ device memory"))
    expect(notes.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"\d+ device memory, \d+ computed"))
    page.get_by_role("link", name="Overview").click()
    hit_rate = page.locator(".figures > div", has_text="Hit rate")
    expect(hit_rate).to_contain_text(re.compile(r"[1-9]\d?(\.\d)?%"))


def events(*deltas: dict[str, str]) -> str:
    """A streamed answer of these, as the server writes it."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": len(deltas),
        "prompt_tokens_details": {"cached_tokens": 0, "cached_tokens_by_tier": {"device": 0, "host": 0, "storage": 0}},
    }
    chunks = [
        *({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas),
        {"id": "chatcmpl-1", "choices": [], "usage": usage},
    ]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def test_thoughts_are_folded_away_and_are_no_part_of_the_conversation(chromium: Chromium) -> None:
    page = open_chat(chromium)
    answers = [
        events({"role": "assistant"}, {"reasoning_content": "Is it "}, {"reasoning_content": "large?"}),
        events({"reasoning_content": "It is in France."}, {"content": "Pa"}, {"content": "ris."}),
        events({"content": "Yes."}),
    ]
    asked: list[Any] = []

    def answer(route: Route) -> None:
        asked.append(json.loads(route.request.post_data or "")["messages"])
        route.fulfill(status=200, content_type="text/event-stream", body=answers[len(asked) - 1])

    page.route("**/v1/chat/completions", answer)
    say(page, "First?")
    turns = page.locator(".turn.assistant")
    expect(turns.first.locator(".note")).to_contain_text("No answer came")
    expect(turns.first.locator(".note")).to_contain_text("first text after")
    thoughts = turns.first.get_by_text("Is it large?")
    expect(thoughts).to_be_hidden()
    turns.first.get_by_text("Thoughts").click()
    expect(thoughts).to_be_visible()
    say(page, "Second?")
    expect(turns.nth(1).locator(".text")).to_have_text("Paris.")
    say(page, "Third?")
    expect(turns.nth(2).get_by_text("Thoughts")).to_have_count(0)
    second = {"role": "user", "content": "Second?"}
    assert asked[1:] == [
        [second],
        [second, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "Third?"}],
    ]


def test_a_miss_is_explained_with_what_differs_on_both_sides(chromium: Chromium) -> None:
    page = open_chat(chromium)
    say(page, f"{HEAD}A quick tiny fox: what does it jump over? The lazy dog jumps over it.")
    page.get_by_role("button", name="New conversation").click()
    say(page, f"{HEAD}A quick slow fox: what does it jump over? The lazy dog jumps over it.")
    page.get_by_role("link", name="Why?").click()
    explanation = page.get_by_role("region", name="Explanation")
    expect(explanation).to_contain_text("in messages[0] (user), character 71")
    ours, theirs = explanation.locator("mark").all()
    expect(ours).to_have_text("slow")
    expect(theirs).to_have_text("tiny")
    expect(explanation.locator(".misses li").first).to_contain_text("The prompt left the known path")
    listed = page.locator("tr.selected")
    expect(listed).to_contain_text("cut at the limit")
    expect(explanation.get_by_role("link", name="this request")).to_be_visible()


def test_a_request_that_is_not_known_is_said_to_be_unknown(chromium: Chromium) -> None:
    page = chromium.open("#/requests/chatcmpl-nobody")
    expect(page.get_by_role("region", name="Explanation")).to_contain_text("No request 'chatcmpl-nobody' is known")


def test_text_of_a_prompt_never_becomes_a_part_of_the_page(chromium: Chromium) -> None:
    page = open_chat(chromium)
    say(page, HOSTILE * 3)
    expect(page.locator(".turn.user .text")).to_have_text(HOSTILE * 3)
    page.get_by_role("button", name="New conversation").click()
    say(page, HOSTILE * 2 + "and another end")
    page.get_by_role("link", name="Why?").click()
    expect(page.locator(".side pre").first).to_contain_text("<script>window.hacked = 1</script>")
    page.get_by_role("link", name="Tree").click()
    heads = page.locator(".branch code", has_text='<img src=x onerror="window.hacked = 1">')
    expect(heads.first).to_contain_text("⟨U+202E⟩")  # what turns the text around is named, not done
    page.get_by_role("link", name="Diagnosis").click()
    page.get_by_role("button", name="Diagnose").click()
    expect(page.locator(".verdict")).to_be_visible()
    assert page.locator("#main img, #main script").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_diagnosis_is_made_at_the_press_of_a_button(chromium: Chromium) -> None:
    page = chromium.open("#/diagnosis")
    page.get_by_role("button", name="Diagnose").click()
    expect(page.locator(".verdict")).to_contain_text("hit rate")


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_the_colours_follow_the_system_until_others_are_chosen(
    chromium: Chromium, scheme: Scheme, other: Scheme
) -> None:
    page = chromium.open(scheme=scheme)
    grounds = {"light": "rgb(244, 246, 248)", "dark": "rgb(12, 18, 24)"}
    body = page.locator("body")
    expect(body).to_have_css("background-color", grounds[scheme])
    toggle = page.get_by_role("button", name="Colours")
    while toggle.get_attribute("title") != f"Colours: {other}":
        toggle.click()
    expect(body).to_have_css("background-color", grounds[other])
    page.reload()
    expect(body).to_have_css("background-color", grounds[other])


def test_no_view_is_wider_than_a_phone(chromium: Chromium) -> None:
    page = chromium.page()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(chromium.url)
    for view in ("Requests", "Tree", "Diagnosis", "Chat", "Overview"):
        page.get_by_role("link", name=view).click()
        expect(page.get_by_role("link", name=view)).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("heading", level=1)).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view


def test_the_page_recovers_by_itself_when_the_server_comes_back(chromium: Chromium, server: Server) -> None:
    page = open_chat(chromium)
    say(page, f"{HEAD}Before.")
    server.stop()
    banner = page.get_by_role("status").filter(has_text="cannot be reached")
    expect(banner).to_be_visible()
    expect(page.get_by_text("unreachable", exact=True)).to_be_visible()
    page.get_by_label("Your message").fill("Is anybody there?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.assistant .note").last).to_contain_text("does not answer")
    server.start_again()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(banner).to_be_hidden()
    say(page, f"{HEAD}After.")
    page.get_by_role("link", name="Requests").click()
    expect(page.locator("tbody tr")).to_have_count(1)
