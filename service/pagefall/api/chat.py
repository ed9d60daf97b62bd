"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import UNSET
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pagefall.api.chat_reply import CallShape, ChatReply, assistant_message, whole_parts
from pagefall.api.choices import choices_of
from pagefall.api.decode import parse_body
from pagefall.api.engine import Engine
from pagefall.api.errors import given_up
from pagefall.api.serve import Answer, ClientRequest, serve
from pagefall.api.wire_chat import (
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
    chat_tools,
)
from pagefall.api.wire_sampling import check_model, include_usage
from pagefall.api.wire_usage import wire_usage
from pagefall.messages import RequestId
from pagefall.text.replies.formats import parser
from pagefall.text.replies.parts import ReplyParser
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
        tools = chat_tools(body)
        answer_id = f"chatcmpl-{uuid.uuid4().hex}"
        n = body.n or 1
        request = chat_request(body, card, RequestId(answer_id), tools)
        return ClientRequest(
            prompts=choices_of((request,), n),
            format=ChatFormat(
                answer_id,
                model=card.id,
                created=int(time.time()),
                include_usage=include_usage(body),
                logprobs=bool(body.logprobs),
                n=n,
                parser=partial(parser, card.replies, tools.policy, constraint=request.constraint),
                call_shape="function_call" if tools.is_old else "tool_calls",
            ),
            stream=bool(body.stream),
        )


class ChatFormat:
    """Writes chat answers; the first chunk of each choice names the role.

    `parser` makes one for each choice, given the end of its prompt (`prompt_tail`).
    """

    def __init__(
        self,
        answer_id: str,
        *,
        model: str,
        created: int,
        include_usage: bool,
        logprobs: bool,
        n: int,
        parser: Callable[..., ReplyParser],
        call_shape: CallShape,
    ) -> None:
        self._id = answer_id
        self._model = model
        self._created = created
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._n = n
        self._parser = parser
        self._call_shape = call_shape
        self._replies: dict[int, ChatReply] = {}

    def chunks(self, index: int, delta: TextDelta) -> Sequence[ChatCompletionChunk]:
        """Raises `RequestError` for an answer that the server gave up."""
        if delta.finish_reason == "abort":
            raise given_up()
        chunks: list[ChatCompletionChunk] = []
        reply = self._replies.get(index)
        if reply is None:
            reply = ChatReply(self._parser(prompt_tail=delta.prompt_tail), self._call_shape)
            self._replies[index] = reply
            chunks.append(self._chunk(ChunkChoice(index=index, delta=Delta(role="assistant", content=""))))
        written = reply.push(delta.text, delta.finish_reason)
        if not written and (delta.logprobs or delta.finish_reason):
            written = [Delta()]
        for number, part in enumerate(written):
            choice = ChunkChoice(
                index=index,
                delta=part,
                logprobs=self._choice_logprobs(delta.logprobs if number == 0 else ()),
                finish_reason=reply.finish_reason(delta.finish_reason) if number == len(written) - 1 else None,
            )
            chunks.append(self._chunk(choice))
        return chunks

    def usage_chunk(self, usages: Sequence[Usage]) -> ChatCompletionChunk | None:
        if not self._include_usage:
            return None
        return ChatCompletionChunk(
            id=self._id, created=self._created, model=self._model, choices=(), usage=wire_usage(usages, n=self._n)
        )

    def complete(self, answers: Sequence[Answer]) -> ChatCompletion:
        """Raises `RequestError` for an answer that the server gave up."""
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=tuple(self._choice(index, answer) for index, answer in enumerate(answers)),
            usage=wire_usage((answer.usage for answer in answers), n=self._n),
        )

    def _choice(self, index: int, answer: Answer) -> ChatChoice:
        if answer.finish_reason == "abort":
            raise given_up()
        message = assistant_message(
            whole_parts(self._parser(prompt_tail=answer.prompt_tail), answer.text), self._call_shape
        )
        calls = bool(message.tool_calls or message.function_call)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._choice_logprobs(answer.logprobs),
            finish_reason=self._call_shape if calls and answer.finish_reason == "stop" else answer.finish_reason,
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
