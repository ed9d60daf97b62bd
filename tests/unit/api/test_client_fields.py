"""What the official clients can send is known here, be it to be refused: none of it is taken for a misspelt field."""

from __future__ import annotations

from typing import Any

import anthropic.types as anthropic
import anthropic.types.beta as anthropic_beta
import httpx
import msgspec
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params
from tests.unit.api.fake_engine import MODEL

from pagefall.api.open_fields import CHANGES_NOTHING, known_fields
from pagefall.api.wire_chat import ChatCompletionRequest
from pagefall.api.wire_completions import CompletionRequest
from pagefall.api.wire_messages import CountTokensRequest, MessagesRequest
from pagefall.api.wire_responses import ResponsesPromptFields, ResponsesRequest

pytestmark = pytest.mark.anyio

HEADERS = {"betas"}
"""Arguments of a client's that it does not send in the body."""

TURN = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": TURN},
    "/v1/completions": {"model": MODEL, "prompt": "Hi"},
    "/v1/messages": {"model": MODEL, "messages": TURN, "max_tokens": 9},
    "/v1/responses": {"model": MODEL, "input": "Hi"},
}


@pytest.mark.parametrize(
    ("params", "wire"),
    [
        (chat_create_params.CompletionCreateParamsStreaming, ChatCompletionRequest),
        (completion_create_params.CompletionCreateParamsStreaming, CompletionRequest),
        (response_create_params.ResponseCreateParamsStreaming, ResponsesRequest),
        (input_token_count_params.InputTokenCountParams, ResponsesPromptFields),
        (anthropic.message_create_params.MessageCreateParamsStreaming, MessagesRequest),
        (anthropic_beta.message_create_params.MessageCreateParamsStreaming, MessagesRequest),
        (anthropic.MessageCountTokensParams, CountTokensRequest),
        (anthropic_beta.MessageCountTokensParams, CountTokensRequest),
    ],
)
def test_every_field_is_known(params: Any, wire: type[msgspec.Struct]) -> None:
    """A new one belongs into the wire type, and where it cannot be ignored among the fields that are refused."""
    assert len(params.__annotations__) > 9
    assert set(params.__annotations__) - HEADERS - known_fields(wire) == set()


@pytest.mark.parametrize("path", BODIES)
async def test_what_changes_nothing_is_ignored_by_every_endpoint(client: httpx.AsyncClient, path: str) -> None:
    typed = {"metadata": {"a": "b"}, "store": False, "stream_options": None}
    wishes = {name: typed.get(name, "x") for name in CHANGES_NOTHING}
    response = await client.post(path, json=BODIES[path] | wishes)
    assert response.status_code == 200, response.text
