"""`/v1/responses`: making responses, going on from them, reading and deleting those that are kept."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
from starlette import responses as starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pagefall.api.decode import parse_body
from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.api.responses_prompt import input_items, output_items
from pagefall.api.responses_reply import ResponsesFormat
from pagefall.api.responses_request import begun_response, prompt_of, responses_request
from pagefall.api.responses_store import Owner, ResponseStore, StoredResponse, owner_of
from pagefall.api.serve import ClientRequest, serve
from pagefall.api.wire_responses import (
    DeletedResponse,
    InputItemList,
    InputTokenCount,
    Response,
    ResponsesPromptFields,
    ResponsesRequest,
    WireItem,
)
from pagefall.api.wire_sampling import check_model
from pagefall.errors import RequestError
from pagefall.text.replies.formats import parser
from pagefall.text.requests import ChatPrompt

_DEFAULT_PAGE: Final = 20
_MAX_PAGE: Final = 100


class CreateResponse:
    """`POST /v1/responses`, an ASGI application."""

    def __init__(self, engine: Engine, store: ResponseStore, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._store = store
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = owner_of(scope)
        request = await parse_body(
            Request(scope, receive),
            ResponsesRequest,
            partial(self._build, owner),
            max_body_bytes=self._max_body_bytes,
        )
        try:
            await serve(self._engine, request, scope, receive, send)
        except RequestError as error:
            raise _named_here(error) from error

    def _build(self, owner: Owner, body: ResponsesRequest) -> ClientRequest:
        card = self._engine.model
        check_model(body.model, card)
        response_id = f"resp_{secrets.token_hex(24)}"
        items, prompt = read_prompt(body, self._store, owner)
        request, policy = responses_request(body, prompt, card, response_id)
        keeps = body.store is not False and self._store.is_open

        def keep(response: Response) -> None:
            if keeps:
                self._store.keep(owner, StoredResponse(response=response, items=items))

        return ClientRequest(
            prompts=(request,),
            format=ResponsesFormat(
                begun_response(body, card, response_id, created_at=int(time.time()), store=keeps),
                parser=partial(parser, card.replies, policy, constraint=request.constraint),
                keep=keep,
            ),
            stream=bool(body.stream),
        )


class KeptResponses:
    """The other endpoints."""

    def __init__(self, engine: Engine, store: ResponseStore, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._store = store
        self._max_body_bytes = max_body_bytes

    async def show_or_delete(self, request: Request) -> starlette.Response:
        """`GET` and `DELETE /v1/responses/{id}`."""
        owner, response_id = owner_of(request.scope), request.path_params["response_id"]
        if request.method == "DELETE":
            if not self._store.delete(owner, response_id):
                raise _not_found(response_id)
            return json_response(DeletedResponse(id=response_id))
        if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
            raise RequestError(
                "Unsupported parameter: a response that is kept is complete: read it without 'stream'.",
                param="stream",
                code="unsupported_parameter",
            )
        return json_response(self._find(request).response)

    async def input_items(self, request: Request) -> starlette.Response:
        """`GET /v1/responses/{id}/input_items`."""
        stored = self._find(request)
        listed = [_listed(item, stored.response.id, index) for index, item in enumerate(stored.items)]
        return json_response(_page(listed, request.query_params))

    async def cancel(self, request: Request) -> starlette.Response:
        """`POST /v1/responses/{id}/cancel`: of background work, which there is none of."""
        self._find(request)
        raise RequestError(
            "Cannot cancel a synchronous response: only responses created with 'background' can be canceled, and this "
            "server makes none. Close the connection to end one that is being made.",
            code="invalid_request",
        )

    async def count_tokens(self, request: Request) -> starlette.Response:
        """`POST /v1/responses/input_tokens`: how long the prompt of a request would be."""
        owner = owner_of(request.scope)

        def build(body: ResponsesPromptFields) -> ChatPrompt:
            check_model(body.model, self._engine.model)
            return read_prompt(body, self._store, owner)[1]

        prompt = await parse_body(request, ResponsesPromptFields, build, max_body_bytes=self._max_body_bytes)
        try:
            token_ids = await self._engine.tokenize(prompt)
        except RequestError as error:
            raise _named_here(error) from error
        return json_response(InputTokenCount(input_tokens=len(token_ids)))

    def _find(self, request: Request) -> StoredResponse:
        response_id = request.path_params["response_id"]
        stored = self._store.find(owner_of(request.scope), response_id)
        if stored is None:
            raise _not_found(response_id)
        return stored


def read_prompt(
    body: ResponsesPromptFields, store: ResponseStore, owner: Owner
) -> tuple[tuple[WireItem, ...], ChatPrompt]:
    """All items that the response will answer, and the prompt that they make. Raises `RequestError`."""
    known: tuple[WireItem, ...] = ()
    if body.previous_response_id is not None:
        previous = store.find(owner, body.previous_response_id)
        if previous is None:
            raise RequestError(
                f"Previous response with id '{body.previous_response_id[:200]}' not found. This server keeps responses "
                "for a time, for the key that they were made with, unless 'store' is false: send the whole "
                "conversation as 'input'.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        known = (*previous.items, *output_items(previous.response.output))
    new = input_items(body.input or ())
    if not new:
        raise RequestError("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    return (*known, *new), prompt_of(body, known, new)


def _named_here(error: RequestError) -> RequestError:
    """What chat calls `messages` is `input` here."""
    if error.param != "messages":
        return error
    return RequestError(
        error.message.replace("in the messages", "in the input").replace("the length of the messages", "the input"),
        status=error.status,
        type=error.type,
        param="input",
        code=error.code,
        retry_after_seconds=error.retry_after_seconds,
    )


def _not_found(response_id: str) -> RequestError:
    return RequestError(
        f"Response with id '{response_id[:200]}' not found.",
        status=404,
        type="not_found_error",
        param="id",
        code="not_found",
    )


def _listed(item: WireItem, response_id: str, index: int) -> dict[str, Any]:
    """As OpenAI lists it: each has an id, and no nulls."""
    fields: dict[str, Any] = msgspec.to_builtins(item)
    fields = {name: value for name, value in fields.items() if value is not None}
    for name in ("content", "output"):
        if isinstance(fields.get(name), list):
            fields[name] = [{key: value for key, value in part.items() if value is not None} for part in fields[name]]
    if item.type == "message" and isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        fields["content"] = [{"type": kind, "text": item.content}]
    return {**fields, "id": item.id or f"item_{response_id.removeprefix('resp_')}_{index}", "status": "completed"}


def _page(items: Sequence[dict[str, Any]], query: QueryParams) -> InputItemList:
    """The newest first unless `order` is `asc`; `limit` of them, those after the item `after`."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError("Invalid value for 'order': it is 'asc' or 'desc'.", param="order", code="invalid_value")
    limit = query.get("limit", str(_DEFAULT_PAGE))
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MAX_PAGE:
        raise RequestError(
            f"Invalid value for 'limit': it is a number from 1 to {_MAX_PAGE}.", param="limit", code="invalid_value"
        )
    ordered = list(items) if order == "asc" else list(reversed(items))
    if (after := query.get("after")) is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise RequestError(
                "Invalid value for 'after': it is the id of an item of this list.", param="after", code="invalid_value"
            )
        ordered = ordered[ids.index(after) + 1 :]
    page = ordered[: int(limit)]
    return InputItemList(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(ordered) > len(page),
    )
