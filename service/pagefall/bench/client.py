"""A stop-watch on `/v1/completions` of any OpenAI-compatible server.

Servers differ in which fields they take. `connect` finds out once, with short probes, so that afterwards every
request is of a form that this server accepts.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec

from pagefall.bench.prompts import Prompt, Prompts, TextPrompts, TokenPrompts
from pagefall.errors import PagefallError
from pagefall.messages import Tier

_OPTIONAL_FIELDS: tuple[tuple[str, Any], ...] = (
    ("stream_options", {"include_usage": True}),
    ("ignore_eos", True),
)
_NUM_CALIBRATION_WORDS = 256


class RefusedError(PagefallError):
    """The server answered with an error status. Nothing was generated."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One streamed answer. Times are seconds of one monotonic clock, an arrival for each event that carried output.

    `num_output_tokens` is the server's count where it reports usage, else the number of arrivals. What the usage does
    not say is None: other servers have no tiers, and some count cached tokens only when started with a flag for it.
    """

    sent_at: float
    arrivals: tuple[float, ...]
    num_output_tokens: int
    num_prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_tokens_by_tier: dict[Tier, int] | None = None

    @property
    def ttft_seconds(self) -> float:
        return self.arrivals[0] - self.sent_at

    @property
    def gaps_seconds(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in itertools.pairwise(self.arrivals))


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _PromptTokensDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cached_tokens_by_tier: dict[Tier, int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptTokensDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class CompletionClient:
    """One server and one of its models. Made by `connect`."""

    def __init__(self, http: httpx.AsyncClient, model: str, prompts: Prompts, fields: dict[str, Any]) -> None:
        """`http` has the server as its base URL; `fields` go into every request."""
        self.http = http
        self.model = model
        self.prompts = prompts
        self._fields = fields

    async def stream(
        self, prompt: Prompt, *, max_tokens: int, keep_going: Callable[[int], bool] = lambda _: True
    ) -> Trace:
        """Generate greedily and time every event. Hangs up as soon as `keep_going(num_arrivals)` is false.

        Raises `RefusedError` for an error status and `PagefallError` for a stream that breaks or brings nothing.
        """
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        arrivals: list[float] = []
        usage: _Usage | None = None
        sent_at = time.perf_counter()
        try:
            async with self.http.stream("POST", "/v1/completions", json=body | self._fields) as response:
                await _raise_for_status(response)
                async for line in response.aiter_lines():
                    now = time.perf_counter()
                    for chunk in _chunks(line):
                        usage = chunk.usage or usage
                        # An event with nothing but the finish reason is no token, unless it is all there is.
                        if any(choice.text or choice.finish_reason is None or not arrivals for choice in chunk.choices):
                            arrivals.append(now)
                    if not keep_going(len(arrivals)):
                        break
        except httpx.HTTPError as error:
            raise PagefallError(f"{self.http.base_url}: {error or type(error).__name__}") from error
        if not arrivals:
            raise PagefallError(f"{self.http.base_url}: the stream ended without output")
        details = (usage and usage.prompt_tokens_details) or _PromptTokensDetails()
        return Trace(
            sent_at=sent_at,
            arrivals=tuple(arrivals),
            num_output_tokens=usage.completion_tokens if usage else len(arrivals),
            num_prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=details.cached_tokens,
            cached_tokens_by_tier=details.cached_tokens_by_tier,
        )


async def connect(http: httpx.AsyncClient, *, model: str | None, rng: random.Random) -> CompletionClient:
    """A client of the server behind `http`, for `model` or else the first one that it lists.

    Probes with the richest request first: token ids, usage in the stream, no stop at the end of sequence.
    Raises `RefusedError` when the server accepts none of the forms, `PagefallError` when it cannot be reached.
    """
    model = model or await _first_model(http)
    fields = [dict(kept) for size in (2, 1, 0) for kept in itertools.combinations(_OPTIONAL_FIELDS, size)]
    refusal: RefusedError | None = None
    for takes_tokens, kept in itertools.product((True, False), fields):
        prompts: Prompts = TokenPrompts(rng) if takes_tokens else TextPrompts(rng, 1.0)
        client = CompletionClient(http, model, prompts, kept)
        try:
            await client.stream(prompts.make(8), max_tokens=2)
        except RefusedError as error:
            if error.status in (401, 403, 404):
                raise  # no form of the request would do; any other status, 500 too, is some server's "unknown field"
            refusal = error
            continue
        if not takes_tokens:
            client.prompts = TextPrompts(rng, await _tokens_per_word(http, model, prompts))
        return client
    assert refusal is not None
    raise refusal


async def _first_model(http: httpx.AsyncClient) -> str:
    try:
        response = await http.get("/v1/models")
        await _raise_for_status(response)
        return str(response.json()["data"][0]["id"])
    except httpx.HTTPError as error:
        raise PagefallError(f"{http.base_url}: {error or type(error).__name__}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise PagefallError(f"{http.base_url}: /v1/models lists no model; name one") from error


async def _tokens_per_word(http: httpx.AsyncClient, model: str, prompts: Prompts) -> float:
    body = {"model": model, "prompt": prompts.make(_NUM_CALIBRATION_WORDS), "max_tokens": 1}
    response = await http.post("/v1/completions", json=body)
    await _raise_for_status(response)
    usage = msgspec.json.decode(response.content, type=_Chunk).usage
    if usage is None:
        raise PagefallError(f"{http.base_url}: answers without usage, so prompts cannot be sized")
    return usage.prompt_tokens / _NUM_CALIBRATION_WORDS


async def _raise_for_status(response: httpx.Response) -> None:
    if response.is_error:
        text = (await response.aread()).decode(errors="replace")
        raise RefusedError(f"{response.url}: status {response.status_code}: {text[:300]}", response.status_code)


def _chunks(line: str) -> Iterator[_Chunk]:
    """The event in one line of a server-sent stream, if there is one. Raises `PagefallError` for an error event."""
    if not line.startswith("data:") or line.endswith("[DONE]"):
        return
    chunk = msgspec.json.decode(line.removeprefix("data:"), type=_Chunk)
    if chunk.error is not None:
        raise PagefallError(f"the stream broke off: {msgspec.json.encode(chunk.error).decode()}")
    yield chunk
