"""`POST /v1/completions`."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pagefall.api.chat import LOWEST_LOGPROB
from pagefall.api.decode import parse_body
from pagefall.api.engine import Engine
from pagefall.api.errors import given_up
from pagefall.api.serve import Answer, ClientRequest, serve
from pagefall.api.wire_completions import (
    Completion,
    CompletionChoice,
    CompletionRequest,
    LegacyLogprobs,
    completion_requests,
    num_choices,
)
from pagefall.api.wire_sampling import check_model, include_usage
from pagefall.api.wire_usage import wire_usage
from pagefall.text.requests import CandidateToken, TextDelta, TextLogprob, Usage


class Completions:
    """The endpoint, an ASGI application."""

    def __init__(self, engine: Engine, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await parse_body(
            Request(scope, receive), CompletionRequest, self._build, max_body_bytes=self._max_body_bytes
        )
        await serve(self._engine, request, scope, receive, send)

    def _build(self, body: CompletionRequest) -> ClientRequest:
        card = self._engine.model
        check_model(body.model, card)
        answer_id = f"cmpl-{uuid.uuid4().hex}"
        return ClientRequest(
            prompts=completion_requests(body, card, answer_id),
            format=CompletionFormat(
                answer_id,
                model=card.id,
                created=int(time.time()),
                include_usage=include_usage(body),
                num_top_logprobs=body.logprobs,
                n=num_choices(body),
            ),
            stream=bool(body.stream),
        )


class CompletionFormat:
    """Writes text completions; choice `i` answers prompt `i // n`."""

    def __init__(
        self, answer_id: str, *, model: str, created: int, include_usage: bool, num_top_logprobs: int | None, n: int
    ) -> None:
        self._id = answer_id
        self._model = model
        self._created = created
        self._include_usage = include_usage
        self._num_top_logprobs = num_top_logprobs
        self._n = n
        self._logprobs: dict[int, LegacyLogprobWriter] = {}

    def chunks(self, index: int, delta: TextDelta) -> Sequence[Completion]:
        """Raises `RequestError` for an answer that the server gave up."""
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return ()
        choice = self._choice(index, delta.text, delta.logprobs, delta.finish_reason)
        return (self._completion((choice,)),)

    def usage_chunk(self, usages: Sequence[Usage]) -> Completion | None:
        if not self._include_usage:
            return None
        usage = wire_usage(usages, n=self._n)
        return Completion(id=self._id, created=self._created, model=self._model, choices=(), usage=usage)

    def complete(self, answers: Sequence[Answer]) -> Completion:
        """Raises `RequestError` for an answer that the server gave up."""
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=tuple(
                self._choice(index, answer.text, answer.logprobs, answer.finish_reason)
                for index, answer in enumerate(answers)
            ),
            usage=wire_usage((answer.usage for answer in answers), n=self._n),
        )

    def _completion(self, choices: tuple[CompletionChoice, ...]) -> Completion:
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=None if self._include_usage else UNSET,
        )

    def _choice(
        self, index: int, text: str, logprobs: Sequence[TextLogprob], finish_reason: str | None
    ) -> CompletionChoice:
        if finish_reason == "abort":
            raise given_up()
        written = None
        if self._num_top_logprobs is not None:
            writer = self._logprobs.setdefault(index, LegacyLogprobWriter(top=self._num_top_logprobs > 0))
            written = writer.write(logprobs)
        return CompletionChoice(index=index, text=text, logprobs=written, finish_reason=finish_reason)


class LegacyLogprobWriter:
    """One choice's log-probabilities, which count the characters of its text as they go."""

    def __init__(self, *, top: bool) -> None:
        """`top`: the most likely tokens are wanted too."""
        self._top = top
        self._offset = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, logprobs: Sequence[TextLogprob]) -> LegacyLogprobs:
        """The next tokens. A token that begins inside a character has the offset of that character."""
        offsets = []
        for logprob in logprobs:
            offsets.append(self._offset)
            if not logprob.special:
                self._offset += len(self._utf8.decode(logprob.chosen.bytes))
        return LegacyLogprobs(
            tokens=[logprob.chosen.text for logprob in logprobs],
            token_logprobs=[
                None if logprob.is_first else max(logprob.chosen.logprob, LOWEST_LOGPROB) for logprob in logprobs
            ],
            top_logprobs=[
                None if logprob.is_first else _by_text((*logprob.top, logprob.chosen)) for logprob in logprobs
            ]
            if self._top
            else None,
            text_offset=offsets,
        )


def _by_text(tokens: Sequence[CandidateToken]) -> dict[str, float]:
    return {token.text: max(token.logprob, LOWEST_LOGPROB) for token in tokens}
