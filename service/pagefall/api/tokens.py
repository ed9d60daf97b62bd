"""`POST /tokenize` and `POST /detokenize`: the served model's tokenizer for clients that count or cut."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.decode import parse_body
from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.api.wire_chat import WireMessage, chat_prompt
from pagefall.api.wire_sampling import TokenId, check_model, check_token_ids
from pagefall.api.wire_tools import WireTool, tools_of
from pagefall.errors import RequestError
from pagefall.text.requests import Prompt, TextPrompt


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Either `prompt` or `messages`. `add_special_tokens` is for `prompt`; the others are for `messages`."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: list[WireMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[WireTool] | None = None


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`max_model_len` is the context in tokens, under the name that other engines gave it."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    text: str


class Tokens:
    """The endpoints."""

    def __init__(self, engine: Engine, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._max_body_bytes = max_body_bytes

    async def tokenize(self, request: Request) -> Response:
        prompt = await parse_body(request, TokenizeRequest, self._prompt, max_body_bytes=self._max_body_bytes)
        token_ids = await self._engine.tokenize(prompt)
        return json_response(
            TokenizeResponse(
                tokens=token_ids.tolist(), count=len(token_ids), max_model_len=self._engine.model.context_length
            )
        )

    async def detokenize(self, request: Request) -> Response:
        token_ids = await parse_body(request, DetokenizeRequest, self._token_ids, max_body_bytes=self._max_body_bytes)
        return json_response(DetokenizeResponse(text=await self._engine.detokenize(token_ids)))

    def _prompt(self, body: TokenizeRequest) -> Prompt:
        check_model(body.model, self._engine.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("Send either 'prompt' or 'messages'.", param="prompt")
        if body.messages is not None:
            return chat_prompt(
                body.messages,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=bool(body.continue_final_message),
                template_kwargs=body.chat_template_kwargs or {},
                tools=tools_of(body.tools or []),
            )
        assert body.prompt is not None
        return TextPrompt(body.prompt, body.add_special_tokens is not False)

    def _token_ids(self, body: DetokenizeRequest) -> list[int]:
        check_model(body.model, self._engine.model)
        check_token_ids(body.tokens, self._engine.model, param="tokens")
        return body.tokens
