"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Final

from msgspec import UNSET
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pagefall.api.decode import parse_body
from pagefall.api.engine import Engine
from pagefall.api.serve import Answer, ClientRequest, serve
from pagefall.api.wire_chat import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChoiceLogprobs,
    ChunkChoice,
    ContentLogprob,
    Delta,
    TokenLogprobs,
    chat_request,
)
from pagefall.api.wire_sampling import check_model, include_usage
from pagefall.api.wire_usage import wire_usage
from pagefall.messages import RequestId
from pagefall.text.requests import CandidateToken, TextDelta, TextLogprob, Usage

LOWEST_LOGPROB: Final = -9999.0
"""OpenAI's stand-in for a probability of zero, for which JSON has no number."""


class ChatCompletions:
    """The endpoint, an ASGI application."""

    def __init__(self, engine: Engine, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await parse_body(
            Request(scope, receive), ChatCompletionRequest, self._build, max_body_bytes=self._max_body_bytes
        )
        await serve(self._engine, request, scope, receive, send)

    def _build(self, body: ChatCompletionRequest) -> ClientRequest:
        card = self._engine.model
        check_model(body.model, card)
        answer_id = f"chatcmpl-{uuid.uuid4().hex}"
        return ClientRequest(
            prompts=(chat_request(body, card, RequestId(answer_id)),),
            format=ChatFormat(
                answer_id,
                model=card.id,
                created=int(time.time()),
                include_usage=include_usage(body),
                logprobs=bool(body.logprobs),
            ),
            stream=bool(body.stream),
        )


class ChatFormat:
    """Writes chat answers; the first chunk of a stream names the role."""

    def __init__(self, answer_id: str, *, model: str, created: int, include_usage: bool, logprobs: bool) -> None:
        self._id = answer_id
        self._model = model
        self._created = created
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._begun = False

    def chunks(self, index: int, delta: TextDelta) -> Sequence[ChatCompletionChunk]:
        chunks = []
        if not self._begun:
            self._begun = True
            chunks.append(self._chunk(ChunkChoice(index=index, delta=Delta(role="assistant", content=""))))
        if delta.text or delta.logprobs or delta.finish_reason:
            choice = ChunkChoice(
                index=index,
                delta=Delta(content=delta.text or None),
                logprobs=self._choice_logprobs(delta.logprobs),
                finish_reason=delta.finish_reason,
            )
            chunks.append(self._chunk(choice))
        return chunks

    def usage_chunk(self, usages: Sequence[Usage]) -> ChatCompletionChunk | None:
        if not self._include_usage:
            return None
        return ChatCompletionChunk(
            id=self._id, created=self._created, model=self._model, choices=(), usage=wire_usage(usages)
        )

    def complete(self, answers: Sequence[Answer]) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=tuple(
                ChatChoice(
                    index=index,
                    message=AssistantMessage(content=answer.text),
                    logprobs=self._choice_logprobs(answer.logprobs),
                    finish_reason=answer.finish_reason,
                )
                for index, answer in enumerate(answers)
            ),
            usage=wire_usage(answer.usage for answer in answers),
        )

    def _chunk(self, choice: ChunkChoice) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=(choice,),
            usage=None if self._include_usage else UNSET,
        )

    def _choice_logprobs(self, logprobs: Sequence[TextLogprob]) -> ChoiceLogprobs | None:
        if not self._logprobs:
            return None
        return ChoiceLogprobs(
            content=[
                ContentLogprob(
                    token=logprob.chosen.text,
                    logprob=max(logprob.chosen.logprob, LOWEST_LOGPROB),
                    bytes=list(logprob.chosen.bytes),
                    top_logprobs=[_token_logprobs(token) for token in logprob.top],
                )
                for logprob in logprobs
            ]
        )


def _token_logprobs(token: CandidateToken) -> TokenLogprobs:
    return TokenLogprobs(token=token.text, logprob=max(token.logprob, LOWEST_LOGPROB), bytes=list(token.bytes))
