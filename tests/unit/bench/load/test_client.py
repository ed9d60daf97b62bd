from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from pagefall.bench.load.client import Endpoint, LoadClient, connect
from pagefall.bench.load.samples import RequestFailedError
from pagefall.bench.prompts import WORDS
from pagefall.errors import PagefallError

from .virtual_time import run_virtually


class ScriptedServer:
    """An OpenAI-compatible server in no process at all. Each prompt word is two tokens, a chat's template adds 7.

    `script` is a list of pauses in seconds and of what comes after them; without it there is an answer of two tokens.
    """

    def __init__(
        self,
        *,
        refuses: Callable[[dict[str, Any]], int | None] = lambda _: None,
        models: list[str] | int = ["first", "second"],  # noqa: B006
        script: list[float | bytes | Exception] | None = None,
        has_tokenize: bool = False,
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._refuses = refuses
        self._models = models
        self._script = script
        self._has_tokenize = has_tokenize

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/models":
            if isinstance(self._models, int):
                return httpx.Response(self._models, json={"error": {"message": "who are you?"}})
            return httpx.Response(200, json={"data": [{"id": name} for name in self._models]})
        body = msgspec.json.decode(request.content)
        if path == "/tokenize":
            if not self._has_tokenize or "content" not in body:
                return httpx.Response(404)
            return httpx.Response(200, json={"tokens": [0] * 2 * len(body["content"].split())})
        self.bodies.append(body)
        self.paths.append(path)
        status = self._refuses(body)
        if status is not None:
            return httpx.Response(status, json={"error": {"message": "no such thing"}})
        return httpx.Response(200, content=self._events(body))

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        if self._script is not None:
            for step in self._script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, bytes):
                    yield step
                else:
                    await anyio.sleep(step)
            return
        for finish_reason in (None, "length"):
            yield self._event({"choices": [{"text": "x", "finish_reason": finish_reason}]})
        if "stream_options" in body:
            said = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
            num_tokens = 2 * len(said.split()) + (7 if "messages" in body else 0)
            yield self._event({"choices": [], "usage": {"prompt_tokens": num_tokens, "completion_tokens": 2}})
        yield b"data: [DONE]\n\n"

    @staticmethod
    def _event(value: object) -> bytes:
        return b"data: " + msgspec.json.encode(value) + b"\n\n"


def connected(
    server: ScriptedServer | Callable[[httpx.Request], httpx.Response],
    function: Callable[[LoadClient], Awaitable[Any]] | None = None,
    *,
    model: str | None = None,
    endpoint: Endpoint = "completions",
) -> Any:
    """The client of `server`, or what `function` makes of it."""

    async def run() -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="http://there") as http:
            client = await connect(http, model=model, endpoint=endpoint)
            return client if function is None else await function(client)

    return run_virtually(run)


def bare(server: ScriptedServer, limit_seconds: float = 600.0) -> Any:
    """The answer to one request, with no probes before."""

    async def run() -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="http://there") as http:
            client = LoadClient(http, model="m", endpoint="completions", fields={}, limit_seconds=limit_seconds)
            return await client.stream(client.text_body("hello", 2))

    return run_virtually(run)


def test_a_server_that_takes_everything_is_asked_for_usage_and_whole_answers() -> None:
    server = ScriptedServer()
    client = connected(server)
    assert client.model == "first"
    assert client.fields == {"stream_options": {"include_usage": True}, "ignore_eos": True}
    assert client.tokens_per_word == 2.0
    assert set(server.paths) == {"/v1/completions"}


def test_a_chats_template_is_told_from_the_words() -> None:
    server = ScriptedServer()
    client = connected(server, endpoint="chat")
    assert (client.tokens_per_word, client.num_template_tokens) == (2.0, 7)
    assert set(server.paths) == {"/v1/chat/completions"}
    assert server.bodies[-1]["messages"][0]["role"] == "user"


def test_every_word_counts_once_and_what_is_found_is_the_same_every_time() -> None:
    servers = [ScriptedServer() for _ in range(2)]
    for salt, server in enumerate(servers):

        async def run(salt: int = salt, server: ScriptedServer = server) -> None:
            async with httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="http://there") as http:
                await connect(http, model=None, endpoint="completions", salt=salt)

        run_virtually(run)
    probes, *calibrations = zip(*([body["prompt"] for body in server.bodies] for server in servers), strict=True)
    assert probes[0] != probes[1]
    assert all(first == second for first, second in calibrations)
    (few, _), (many, _) = calibrations
    assert sorted(many.removeprefix(few).split()) == sorted(WORDS)


def test_fields_that_are_refused_are_left_out() -> None:
    server = ScriptedServer(refuses=lambda body: 400 if "ignore_eos" in body else None)
    assert connected(server).fields == {"stream_options": {"include_usage": True}}


def test_a_server_without_usage_counts_with_its_tokenizer_or_not_at_all() -> None:
    def refuses(body: dict[str, Any]) -> int | None:
        return 422 if "stream_options" in body else None

    assert connected(ScriptedServer(refuses=refuses, has_tokenize=True)).tokens_per_word == 2.0
    assert connected(ScriptedServer(refuses=refuses)).tokens_per_word == 1.0


@pytest.mark.parametrize(
    ("server", "model", "message"),
    [
        (ScriptedServer(), "third", "there is no model 'third'; --model may be first, second"),
        (ScriptedServer(models=[]), None, "lists no model; name one with --model"),
        (ScriptedServer(models=401), None, "status 401: who are you.; give its key with --api-key"),
        (ScriptedServer(refuses=lambda _: 403), None, "no such thing; give its key with --api-key"),
        (ScriptedServer(refuses=lambda _: 404), None, "if it has no /v1/completions, use --endpoint chat"),
        (ScriptedServer(refuses=lambda _: 400), None, "status 400: no such thing"),
        (ScriptedServer(script=[b"data: {}\n\n"]), None, "closed early: the stream ended after 0 events"),
    ],
)
def test_a_server_that_cannot_be_used_says_why(server: ScriptedServer, model: str | None, message: str) -> None:
    with pytest.raises(PagefallError, match=f"http://there: .*{message}"):
        connected(server, model=model)


def test_a_server_that_lists_no_models_is_believed_the_one_that_is_named() -> None:
    assert connected(ScriptedServer(models=404), model="mine").model == "mine"


def test_what_is_no_such_server_is_named() -> None:
    with pytest.raises(PagefallError, match="is this the right URL"):
        connected(lambda _: httpx.Response(200, text="<html>"))

    def unreachable(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(PagefallError, match="http://there: cannot connect: refused"):
        connected(unreachable)


def test_times_are_those_of_the_events() -> None:
    events = [b'data: {"choices": [{"text": "a"}]}\n\n', b'data: {"choices": [{"text": "b"}]}\n\ndata: [DONE]\n\n']
    answer = bare(ScriptedServer(script=[3.0, events[0][:9], 1.0, events[0][9:], 0.25, events[1]]))
    assert (answer.sent_at, answer.arrivals, answer.ended_at) == (0.0, (4.0, 4.25), 4.25)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ([1.0, httpx.RemoteProtocolError("peer closed connection")], "closed early"),
        ([httpx.ReadTimeout("")], "timeout"),
        ([httpx.ConnectTimeout("")], "cannot connect"),
        ([b": waiting\n\n", 31.0], "timeout"),
    ],
)
def test_every_way_to_fail_has_its_name(script: list[float | bytes | Exception], name: str) -> None:
    with pytest.raises(RequestFailedError) as error:
        bare(ScriptedServer(script=script), limit_seconds=30.0)
    assert error.value.fault.name == name


def test_a_refusal_is_counted_by_its_status() -> None:
    with pytest.raises(RequestFailedError, match="status 429: no such thing") as error:
        bare(ScriptedServer(refuses=lambda _: 429))
    assert error.value.fault.name == "status 429"
