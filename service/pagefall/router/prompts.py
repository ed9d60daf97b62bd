"""From an HTTP request to what a policy sees: the prompt is tokenised once, here, or stands as text."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import anyio.to_thread
from starlette.datastructures import Headers

from pagefall.errors import RequestError
from pagefall.messages import TokenIds
from pagefall.router.bodies import Body, Endpoint, prompt_text, read_body
from pagefall.router.routing import RouteRequest
from pagefall.text.requests import Prompt

_INLINE_BYTES: Final = 64 * 1024
"""Bodies up to this size are read within a millisecond."""


class Encoder(Protocol):
    """An `actors.encoding.PromptEncoder`, which is not imported here: it needs a tokenizer, and that needs torch."""

    async def encode(self, prompt: Prompt, salt: str) -> TokenIds:
        """Raises `RequestError` where the template refuses, or too many wait."""


class ReadRequest(NamedTuple):
    """`endpoint` "other": no prompt is known of, and the request goes where least is to do."""

    endpoint: Endpoint
    body: Body
    route: RouteRequest


class PromptReader:
    def __init__(self, encoder: Encoder | None, *, model: str | None) -> None:
        """`encoder` None: nothing is tokenised. `model` is the one that it is for; None: for whatever is asked for."""
        self._encoder = encoder
        self._model = model

    async def read(self, endpoint: Endpoint, content: bytes, headers: Headers) -> ReadRequest:
        """Raises nothing: what cannot be read is forwarded all the same."""
        if len(content) <= _INLINE_BYTES:
            body = read_body(content, endpoint)
        else:
            body = await anyio.to_thread.run_sync(read_body, content, endpoint)
        token_ids = await self._token_ids(body)
        route = RouteRequest(
            token_ids=token_ids,
            text=prompt_text(content) if token_ids is None and endpoint != "other" else "",
            cache_salt=body.cache_salt,
            session_key=headers.get("x-session-id") or body.user,
            max_tokens=body.max_tokens,
        )
        return ReadRequest(endpoint, body, route)

    async def _token_ids(self, body: Body) -> TokenIds | None:
        if self._encoder is None or body.prompt is None:
            return None
        if self._model is not None and body.model not in (None, self._model):
            return None
        try:
            return await self._encoder.encode(body.prompt, body.cache_salt)
        except RequestError:
            return None  # the worker will say it, or a queue is full and the text must do


def endpoint_of(path: str) -> Endpoint:
    match path:
        case "/v1/chat/completions":
            return "chat"
        case "/v1/completions":
            return "completions"
        case "/v1/messages":
            return "messages"
        case "/v1/responses":
            return "responses"
        case _:
            return "other"
