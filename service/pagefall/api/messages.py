"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, as Anthropic's clients speak."""

from __future__ import annotations

import secrets
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagefall.api.decode import parse_body
from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.api.messages_reply import MessagesFormat
from pagefall.api.messages_request import messages_request, prompt_of, without_limit
from pagefall.api.serve import ClientRequest, serve
from pagefall.api.wire_messages import CountTokensRequest, MessagesRequest, TokenCount
from pagefall.api.wire_sampling import check_model
from pagefall.errors import RequestError
from pagefall.messages import RequestId
from pagefall.text.replies.formats import parser
from pagefall.text.requests import ChatPrompt


class Messages:
    """The endpoint, an ASGI application."""

    def __init__(self, engine: Engine, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, answer_format = await parse_body(
            Request(scope, receive), MessagesRequest, self._build, max_body_bytes=self._max_body_bytes
        )
        try:
            await serve(self._engine, request, scope, receive, send)
        except RequestError as error:
            [prompt] = request.prompts
            if error.code != "context_length_exceeded" or prompt.max_tokens is None:
                raise
            # As at Anthropic's: where prompt and limit pass the context, the answer ends where that does.
            answer_format.end_at_context()
            unlimited = msgspec.structs.replace(request, prompts=(without_limit(prompt),))
            await serve(self._engine, unlimited, scope, receive, send)

    def _build(self, body: MessagesRequest) -> tuple[ClientRequest, MessagesFormat]:
        card = self._engine.model
        check_model(body.model, card)
        answer_id = f"msg_{secrets.token_hex(16)}"
        prompt, policy = messages_request(body, card, RequestId(answer_id))
        answer_format = MessagesFormat(
            answer_id,
            model=card.id,
            parser=partial(parser, card.replies, policy, constraint=prompt.constraint),
            at_context_end=prompt.max_tokens is None,
        )
        return ClientRequest(prompts=(prompt,), format=answer_format, stream=bool(body.stream)), answer_format


class CountTokens:
    """How long the prompt of a request would be."""

    def __init__(self, engine: Engine, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._max_body_bytes = max_body_bytes

    async def count(self, request: Request) -> Response:
        prompt = await parse_body(request, CountTokensRequest, self._prompt, max_body_bytes=self._max_body_bytes)
        return json_response(TokenCount(input_tokens=len(await self._engine.tokenize(prompt))))

    def _prompt(self, body: CountTokensRequest) -> ChatPrompt:
        check_model(body.model, self._engine.model)
        prompt, _, _ = prompt_of(body)
        return prompt
