"""One server under load: requests of a form that it takes, timed event by event."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import anyio
import httpx
import msgspec

from pagefall.bench.load.receiver import AnswerReceiver, error_text
from pagefall.bench.load.samples import Answer, Fault, RequestFailedError
from pagefall.bench.load.texts import Texts, words
from pagefall.bench.load.turns import Turn
from pagefall.bench.prompts import WORDS
from pagefall.errors import PagefallError

Endpoint = Literal["completions", "chat"]

_PATHS: Final[dict[Endpoint, str]] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_OPTIONAL_FIELDS: Final[tuple[tuple[str, Any], ...]] = (
    ("stream_options", {"include_usage": True}),
    ("ignore_eos", True),
)
_CALIBRATION_WORDS: Final = 64
_LEAST_TOKENS_PER_WORD: Final = 0.1
_HEADERS: Final = {"content-type": "application/json"}
_MESSAGE_CHARS: Final = 300


class _Counted(msgspec.Struct):
    count: int | None = None
    tokens: list[Any] = []


class LoadClient:
    """One server, one of its models, one of its endpoints. Made by `connect`, which finds out how long words are."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        model: str,
        endpoint: Endpoint,
        fields: Mapping[str, Any],
        limit_seconds: float,
    ) -> None:
        """`http` has the server as its base URL; `fields` go into every request, which may take `limit_seconds`."""
        self.http = http
        self.model = model
        self.endpoint: Endpoint = endpoint
        self.fields = dict(fields)
        self.tokens_per_word = 1.0
        self.num_template_tokens = 0
        self._limit_seconds = limit_seconds

    def body(self, turn: Turn, texts: Texts, answers: Mapping[int, str]) -> bytes:
        """The request as JSON, made before it is due: a long prompt takes some milliseconds."""
        if self.endpoint == "chat":
            return self._body({"messages": texts.messages(turn, answers)}, turn.output_tokens)
        return self._body({"prompt": texts.prompt(turn, answers)}, turn.output_tokens)

    def text_body(self, text: str, max_tokens: int) -> bytes:
        """The same for one text."""
        if self.endpoint == "chat":
            return self._body({"messages": [{"role": "user", "content": text}]}, max_tokens)
        return self._body({"prompt": text}, max_tokens)

    def _body(self, prompt: Mapping[str, Any], max_tokens: int) -> bytes:
        return msgspec.json.encode(
            {"model": self.model, **prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True, **self.fields}
        )

    async def stream(self, body: bytes, *, on_token: Callable[[], object] = lambda: None) -> Answer:
        """Send it and time every event of the answer; `on_token` is called for the first one.

        Raises `RequestFailedError` for whatever is no complete answer.
        """
        try:
            with anyio.fail_after(self._limit_seconds):
                return await self._stream(body, on_token)
        except httpx.HTTPError as error:
            raise RequestFailedError(_fault(error)) from error
        except TimeoutError as error:
            message = f"not done after {self._limit_seconds:g} s"
            raise RequestFailedError(Fault(kind="timeout", message=message)) from error

    async def _stream(self, body: bytes, on_token: Callable[[], object]) -> Answer:
        receiver = AnswerReceiver(sent_at=anyio.current_time(), on_token=on_token)
        async with self.http.stream("POST", _PATHS[self.endpoint], content=body, headers=_HEADERS) as response:
            if response.is_error:
                raise RequestFailedError(_refusal(response, await response.aread()))
            async for data in response.aiter_bytes():
                receiver.receive(data, anyio.current_time())
        return receiver.answer()


async def connect(
    http: httpx.AsyncClient,
    *,
    model: str | None,
    endpoint: Endpoint,
    limit_seconds: float = 600.0,
    salt: int = 0,
) -> LoadClient:
    """A client for `model`, else the first that the server lists, which has answered and knows how long a word is.

    Fields that the server refuses are left out. `salt` makes the words of the first request.
    Raises `PagefallError` that says what is wrong: no server, no such model, no or a wrong key, no such endpoint.
    """
    model = await _model(http, model)
    refusal: RequestFailedError | None = None
    for kept in (dict(kept) for size in (2, 1, 0) for kept in itertools.combinations(_OPTIONAL_FIELDS, size)):
        client = LoadClient(http, model=model, endpoint=endpoint, fields=kept, limit_seconds=limit_seconds)
        try:
            await client.stream(client.text_body(words(salt, "probe", 8), 2))
        except RequestFailedError as error:
            if error.fault.status is None or error.fault.status in (401, 403, 404, 405, 429, 503):
                raise PagefallError(f"{_url(http)}: {_advice(error.fault, endpoint)}") from error
            refusal = error  # any other status, 500 too, is some server's "unknown field"
            continue
        await _calibrate(client)
        return client
    assert refusal is not None
    raise PagefallError(f"{_url(http)}: {refusal.fault.message}") from refusal


async def _model(http: httpx.AsyncClient, wanted: str | None) -> str:
    try:
        response = await http.get("/v1/models")
        if response.status_code in (404, 405) and wanted is not None:
            return wanted
        if response.is_error:
            fault = _refusal(response, await response.aread())
            raise PagefallError(f"{_url(http)}: {_advice(fault, 'completions')}")
        names = [str(entry["id"]) for entry in response.json()["data"]]
    except httpx.HTTPError as error:
        raise PagefallError(f"{_url(http)}: {_fault(error).kind}: {error or type(error).__name__}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise PagefallError(f"{_url(http)}: /v1/models is not OpenAI's; is this the right URL?") from error
    if not names:
        raise PagefallError(f"{_url(http)}: /v1/models lists no model; name one with --model")
    if wanted is None:
        return names[0]
    if wanted not in names:
        raise PagefallError(f"{_url(http)}: there is no model {wanted!r}; --model may be {', '.join(names[:8])}")
    return wanted


async def _calibrate(client: LoadClient) -> None:
    """How many tokens a word is, and what a chat's template adds to a prompt: by the usage of two prompts, of which the
    second has every word once more, else by `/tokenize`; where a server has neither, a word counts as one token.

    The prompts are always the same, and so are the lengths of what a seed makes for a tokenizer.
    """
    few = words(0, "calibration", _CALIBRATION_WORDS)
    counts: list[int] = []
    for text in (few, " ".join([few, *WORDS])):
        try:
            answer = await client.stream(client.text_body(text, 1))
        except RequestFailedError as error:
            raise PagefallError(f"{_url(client.http)}: {_advice(error.fault, client.endpoint)}") from error
        count = answer.num_prompt_tokens
        if count is None:
            count = await _tokenized(client, text)
        if count is None:
            return
        counts.append(count)
    num_few, num_many = counts
    client.tokens_per_word = max(_LEAST_TOKENS_PER_WORD, (num_many - num_few) / len(WORDS))
    if client.endpoint == "chat":
        client.num_template_tokens = max(0, round(num_few - client.tokens_per_word * _CALIBRATION_WORDS))


async def _tokenized(client: LoadClient, text: str) -> int | None:
    """The server's count, where it has such an endpoint. `content` is llama.cpp's word for `prompt`."""
    for body in ({"model": client.model, "prompt": text}, {"content": text}):
        try:
            response = await client.http.post("/tokenize", json=body)
            if response.is_success:
                counted = msgspec.json.decode(response.content, type=_Counted)
                if counted.count or counted.tokens:
                    return counted.count or len(counted.tokens)
        except (httpx.HTTPError, msgspec.DecodeError):
            return None
    return None


def _refusal(response: httpx.Response, content: bytes) -> Fault:
    try:
        document = msgspec.json.decode(content)
        message = error_text(document["error"])
    except (msgspec.DecodeError, LookupError, TypeError):
        message = content[:_MESSAGE_CHARS].decode(errors="replace").strip()
    status = response.status_code
    return Fault(kind="status", status=status, message=f"status {status}" + (f": {message}" if message else ""))


def _fault(error: httpx.HTTPError) -> Fault:
    message = str(error) or type(error).__name__
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.UnsupportedProtocol():
            return Fault(kind="cannot connect", message=message)
        case httpx.TimeoutException():
            return Fault(kind="timeout", message=message)
        case _:
            return Fault(kind="closed early", message=message)


def _advice(fault: Fault, endpoint: Endpoint) -> str:
    """What is wrong and, where that is known, what to do."""
    match fault.status:
        case 401 | 403:
            return f"{fault.message}; give its key with --api-key or PAGEFALL_API_KEY"
        case 404 | 405:
            other = "chat" if endpoint == "completions" else "completions"
            return f"{fault.message}; if it has no {_PATHS[endpoint]}, use --endpoint {other}"
        case _:
            return fault.message if fault.status else f"{fault.kind}: {fault.message}"


def _url(http: httpx.AsyncClient) -> str:
    return str(http.base_url).rstrip("/")
