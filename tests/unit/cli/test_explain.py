"""`pagefall explain`: what it asks, and what it prints."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from pagefall.api.errors import error_body
from pagefall.api.explanations import RequestsAnswer, RequestSummary
from pagefall.cli.explain_report import report
from pagefall.cli.main import main
from pagefall.errors import RequestError
from pagefall.insight.difference import Snippet
from pagefall.insight.explanation import ExplainedDivergence, ExplainedMiss, Explanation
from pagefall.messages import RequestId

EXPLANATION = Explanation(
    request_id=RequestId("chatcmpl-1"),
    http_request_id="trace-1",
    model="m",
    time=1_700_000_000.0,
    state="ended",
    finish_reason="stop",
    abort_reason=None,
    is_settled=True,
    num_prompt_tokens=600,
    num_cached_tokens=512,
    num_known_tokens=528,
    num_generated_tokens=9,
    num_tokens_by_source={"device": 512, "host": 0, "storage": 0, "computed": 88, "unreached": 0},
    page_size=16,
    ttft_seconds=0.125,
    total_seconds=2.0,
    queue_seconds=0.003,
    saved_seconds=0.4,
    divergence=ExplainedDivergence(
        token_index=530,
        has_other=True,
        is_cached=True,
        other_request_id=RequestId("chatcmpl-0"),
        character=1043,
        is_same_text=False,
        is_decoded_text=False,
        message_index=1,
        message_role="user",
        message_part="content",
        message_character=27,
        snippet=Snippet(before="날씨:\n12:4", prompt="5 and\x1b[31m", other="7 and"),
    ),
    misses=(
        ExplainedMiss(
            reason="evicted",
            first_token=512,
            num_tokens=16,
            first_page=32,
            num_pages=1,
            explanation="evicted from host memory 42 s earlier because it was full",
            advice="Give the host pool more room.",
        ),
        ExplainedMiss(
            reason="page_tail", first_token=592, num_tokens=1, first_page=37, num_pages=1, explanation="the last token"
        ),
    ),
)
SUMMARY = RequestSummary(
    request_id=RequestId("chatcmpl-1"),
    http_request_id=None,
    time=1_700_000_000.0,
    state="ended",
    finish_reason="stop",
    abort_reason=None,
    is_settled=True,
    num_prompt_tokens=600,
    num_cached_tokens=512,
    num_known_tokens=528,
    num_generated_tokens=9,
    num_tokens_by_source={"device": 512, "computed": 88},
    ttft_seconds=0.125,
    total_seconds=2.0,
    first_miss="evicted",
    divergence_token_index=530,
)


class Server(ThreadingHTTPServer):
    """Answers every path with what is set, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.body: bytes = b"{}"
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.asked.append((self.path, self.headers.get("authorization")))
        self.send_response(server.status)
        self.send_header("content-length", str(len(server.body)))
        self.end_headers()
        self.wfile.write(server.body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_request_is_explained_with_a_caret_at_the_text_that_differs() -> None:
    lines = report(EXPLANATION).splitlines()
    assert lines[0].startswith("chatcmpl-1  m  ended (stop)  2023-11-1")
    assert lines[1:6] == [
        "x-request  trace-1",
        "",
        "prompt     600 tokens: 512 device, 88 computed",
        "times      queue 3 ms, TTFT 125 ms, total 2.0 s, saved about 400 ms",
        "known      528 tokens, which an endless cache would have had",
    ]
    assert lines[6:] == [
        "",
        "It left the known path at token 530, in messages[1] (user), character 27.",
        "The path is that of chatcmpl-0.",
        "",
        "  path     날씨:↵12:47 and",
        "  prompt   날씨:↵12:45 and·[31m",
        "                     ^",
        "",
        "Not cached:",
        "  tokens 512 to 527: evicted",
        "      evicted from host memory 42 s earlier because it was full",
        "      Give the host pool more room.",
        "  token 592: page_tail",
        "      the last token",
    ]


def test_of_a_redacted_prompt_the_place_is_left() -> None:
    assert EXPLANATION.divergence is not None
    redacted = msgspec.structs.replace(EXPLANATION.divergence, snippet=None)
    text = report(msgspec.structs.replace(EXPLANATION, divergence=redacted))
    assert "character 27" in text
    assert "^" not in text


def test_a_request_that_waits_has_no_account_yet() -> None:
    waiting = msgspec.structs.replace(
        EXPLANATION,
        state="queued",
        is_settled=False,
        finish_reason=None,
        num_tokens_by_source={},
        divergence=None,
        misses=(),
        ttft_seconds=None,
        total_seconds=None,
        queue_seconds=None,
        saved_seconds=0.0,
    )
    text = report(waiting)
    assert "prompt     600 tokens\ntimes      none yet\n" in text
    assert "known with its first token" in text


@pytest.mark.parametrize(
    "words",
    [["a b/1", "--url", "{}"], ["--url", "{}", "a b/1"], ["--url={}/v1/", "a b/1"], ["--url={}", "--json", "a b/1"]],
)
def test_the_id_stands_before_or_after_the_flags(
    server: Server, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    server.body = msgspec.json.encode(EXPLANATION)
    assert main(["explain", *(word.format(server.url) for word in words)]) == 0
    assert server.asked == [("/cache/explain/a%20b/1", None)]
    out = capsys.readouterr().out
    if "--json" in words:
        assert msgspec.json.decode(out, type=Explanation) == EXPLANATION
    else:
        assert out == report(EXPLANATION)


def test_without_an_id_the_last_requests_are_listed(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEFALL_API_KEY", "sk-1")
    server.body = msgspec.json.encode(RequestsAnswer(requests=[SUMMARY], num_remembered=1))
    assert main(["explain", "--limit", "5", "--url", server.url]) == 0
    assert server.asked == [("/cache/requests?limit=5", "Bearer sk-1")]
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["request", "time"]
    assert row.split()[0] == "chatcmpl-1"
    assert row.split()[3:] == ["ended", "600", "512", "0", "0", "125", "ms", "evicted"]


def test_no_requests_are_said_to_be_none(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.body = msgspec.json.encode(RequestsAnswer(requests=[], num_remembered=0))
    assert main(["explain", "--url", server.url]) == 0
    assert capsys.readouterr().out == "no requests yet\n"


def test_what_the_server_refuses_is_told_in_its_words(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.status = 404
    server.body = msgspec.json.encode(error_body(RequestError("No request 'x' is known.")))
    assert main(["explain", "x", "--url", server.url]) == 1
    assert capsys.readouterr().err == f"pagefall: error: {server.url}: No request 'x' is known.\n"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [(502, b"<html>", "status 502; is this a Pagefall server?"), (200, b'{"a": 1}', "another version of Pagefall")],
)
def test_another_server_is_told_from_ours(
    server: Server, capsys: pytest.CaptureFixture[str], status: int, body: bytes, words: str
) -> None:
    server.status, server.body = status, body
    assert main(["explain", "x", "--url", server.url]) == 1
    assert words in capsys.readouterr().err


def test_a_server_that_is_not_there_is_an_error_that_names_the_flag(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in ("http://127.0.0.1:1", "http://[", "ftp://x"):
        assert main(["explain", "x", "--url", url]) == 1
        assert "name a running server with --url" in capsys.readouterr().err


def test_a_flag_that_does_not_exist_is_a_configuration_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "x", "--ulr", "http://x"]) == 2
    assert "did you mean --url?" in capsys.readouterr().err
