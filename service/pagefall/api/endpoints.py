"""Every endpoint of the server, for `/openapi.json`. A test compares it with the routes of `app.py`."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Final

import msgspec

from pagefall.api.cache_stats import CacheStatsAnswer
from pagefall.api.errors import ErrorBody
from pagefall.api.explanations import RequestsAnswer
from pagefall.api.messages_errors import AnthropicErrorBody
from pagefall.api.models import WireModel, WireModelList
from pagefall.api.openapi import Endpoint, Json, Parameter, openapi_document
from pagefall.api.operations import FlushAnswer
from pagefall.api.storage import AttachBody, StorageAnswer
from pagefall.api.tokens import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from pagefall.api.tree import TreeAnswer
from pagefall.api.wire_chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from pagefall.api.wire_completions import Completion, CompletionRequest
from pagefall.api.wire_messages import CountTokensRequest as MessagesCountRequest
from pagefall.api.wire_messages import MessageAnswer, MessageEvent, MessagesRequest, TokenCount
from pagefall.api.wire_response_events import StreamedResponseEvent
from pagefall.api.wire_responses import (
    DeletedResponse,
    InputItemList,
    InputTokenCount,
    ResponsesPromptFields,
    ResponsesRequest,
)
from pagefall.api.wire_responses import Response as ResponsesAnswer
from pagefall.insight.diagnosis.report import Diagnosis
from pagefall.insight.explanation import Explanation

_DESCRIPTION: Final = (
    "An OpenAI-compatible server whose prefix cache spans device memory, host RAM and stores. Fields that are not "
    "named here are ignored by the endpoints that generate unless they look like a misspelt one."
)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    status: str


_Generation: Final = partial(Endpoint, method="post", tag="generation", error=ErrorBody)
_Messages: Final = partial(Endpoint, method="post", tag="messages", error=AnthropicErrorBody)
_Get: Final = partial(Endpoint, method="get", error=ErrorBody)
_Storage: Final = partial(Endpoint, path="/cache/storage", tag="cache", error=ErrorBody, answer=StorageAnswer)

_TIERS: Final = Parameter(
    name="tiers",
    description="Of device, host and storage, with commas; absent: device,host",
    schema={"type": "string"},
)


def _number(name: str, description: str, **limits: Any) -> Parameter:
    return Parameter(name=name, description=description, schema={"type": "number", **limits})


def _integer(name: str, description: str, **limits: Any) -> Parameter:
    return Parameter(name=name, description=description, schema={"type": "integer", **limits})


def _text(name: str, description: str, **limits: Any) -> Parameter:
    return Parameter(name=name, description=description, schema={"type": "string", **limits})


_RESPONSE_ID: Final = _text("response_id", "The id of a response", minLength=1)
_Kept: Final = partial(Endpoint, tag="generation", error=ErrorBody, parameters=(_RESPONSE_ID,))

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    _Generation(
        path="/v1/chat/completions",
        summary="The next turn of a conversation",
        body=ChatCompletionRequest,
        answer=ChatCompletion,
        events=ChatCompletionChunk,
    ),
    _Generation(
        path="/v1/completions",
        summary="How texts go on",
        body=CompletionRequest,
        answer=Completion,
        events=Completion,
    ),
    _Generation(
        path="/v1/responses",
        summary="The next turn of a conversation, which the server may keep",
        body=ResponsesRequest,
        answer=ResponsesAnswer,
        events=StreamedResponseEvent,
    ),
    _Generation(
        path="/v1/responses/input_tokens",
        summary="How long the prompt of a request would be",
        body=ResponsesPromptFields,
        answer=InputTokenCount,
    ),
    _Kept(method="get", path="/v1/responses/{response_id}", summary="A response", answer=ResponsesAnswer),
    _Kept(method="delete", path="/v1/responses/{response_id}", summary="Forget a response", answer=DeletedResponse),
    _Kept(
        method="get",
        path="/v1/responses/{response_id}/input_items",
        summary="What a response answers",
        answer=InputItemList,
        parameters=(
            _RESPONSE_ID,
            _text("order", "By age; the newest first unless it is asc", enum=["asc", "desc"]),
            _integer("limit", "How many at most", minimum=1, maximum=100),
            _text("after", "The id of an item: only those after it"),
        ),
    ),
    _Kept(
        method="post",
        path="/v1/responses/{response_id}/cancel",
        summary="Refused: nothing is made in the background",
        answer=ResponsesAnswer,
    ),
    _Messages(
        path="/v1/messages",
        summary="The next turn of a conversation, in Anthropic's shape",
        body=MessagesRequest,
        answer=MessageAnswer,
        events=MessageEvent,
    ),
    _Messages(
        path="/v1/messages/count_tokens",
        summary="How long the prompt of a request would be",
        body=MessagesCountRequest,
        answer=TokenCount,
    ),
    _Get(path="/v1/models", tag="models", summary="The served model, as a list", answer=WireModelList),
    _Get(
        path="/v1/models/{model}",
        tag="models",
        summary="The served model",
        answer=WireModel,
        parameters=(_text("model", "The name of the model", minLength=1),),
    ),
    Endpoint(
        method="post",
        path="/tokenize",
        tag="tokens",
        summary="The token ids of a text or a conversation",
        body=TokenizeRequest,
        answer=TokenizeResponse,
        error=ErrorBody,
    ),
    Endpoint(
        method="post",
        path="/detokenize",
        tag="tokens",
        summary="The text of token ids",
        body=DetokenizeRequest,
        answer=DetokenizeResponse,
        error=ErrorBody,
    ),
    *(
        Endpoint(
            method=method,
            path="/flush_cache",
            tag="cache",
            summary="Drop what is cached and not in use",
            answer=FlushAnswer,
            error=ErrorBody,
            failure=FlushAnswer,
            parameters=(_TIERS,),
        )
        for method in ("get", "post")
    ),
    _Get(
        path="/cache/events",
        tag="cache",
        summary="What enters and leaves each tier, for ever, a line of JSON each",
        media_type="application/x-ndjson",
        parameters=(
            _text("epoch", "Of the events that the client has"),
            _integer("after", "The last event that it has", minimum=0),
        ),
    ),
    _Storage(method="get", summary="Which store is attached"),
    _Storage(method="put", summary="Attach a store in place of any other", body=AttachBody),
    _Storage(method="delete", summary="Detach the store"),
    _Get(
        path="/cache/stats",
        tag="cache",
        summary="Pools, tiers, hit rates and time series",
        answer=CacheStatsAnswer,
        parameters=(_number("since", "Unix seconds: of the series, only what came later"),),
    ),
    _Get(
        path="/cache/tree",
        tag="cache",
        summary="The largest branches of the radix tree",
        answer=TreeAnswer,
        parameters=(_integer("max_branches", "How many at most", minimum=1),),
    ),
    _Get(
        path="/cache/requests",
        tag="cache",
        summary="The requests that can be explained, the newest first",
        answer=RequestsAnswer,
        parameters=(
            _integer("limit", "How many at most", minimum=1),
            _text("state", "Which ones", enum=["live", "ended"]),
        ),
    ),
    _Get(
        path="/cache/explain/{request_id}",
        tag="cache",
        summary="Where the tokens of a request came from, and why the others did not",
        answer=Explanation,
        parameters=(_text("request_id", "The id of an answer, or an x-request-id", minLength=1),),
    ),
    _Get(
        path="/cache/diagnose",
        tag="cache",
        summary="What of the traffic could have been cached and was not, and what to change",
        answer=Diagnosis,
        parameters=(
            _integer("last", "Look at so many requests", minimum=1),
            _number("seconds", "Look at those of so many seconds", exclusiveMinimum=0),
        ),
    ),
    _Get(
        path="/metrics",
        tag="operations",
        summary="Metrics for Prometheus",
        media_type="text/plain",
        is_open=True,
    ),
    _Get(path="/health", tag="operations", summary="Whether requests can be served", answer=Status, is_open=True),
    _Get(path="/health/live", tag="operations", summary="Whether the process lives", answer=Status, is_open=True),
    _Get(path="/openapi.json", tag="operations", summary="This document", media_type="application/json"),
    _Get(path="/", tag="console", summary="The console, for browsers", media_type="text/html", is_open=True),
    _Get(
        path="/console/{name}",
        tag="console",
        summary="A file of the console",
        media_type="*/*",
        is_open=True,
        parameters=(_text("name", "Its name", minLength=1),),
    ),
)


@cache
def document() -> Json:
    """The OpenAPI document of all of them."""
    return openapi_document(ENDPOINTS, title="Pagefall", description=_DESCRIPTION)
