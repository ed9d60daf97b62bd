"""Generation over HTTP: submit all prompts, then stream the deltas or collect them, and give up with the client.

Nothing is sent before the engine has accepted every prompt, so that every refusal still has its status. However a
request ends, each of its generations is closed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, Protocol, runtime_checkable

import anyio
import anyio.to_thread
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagefall.api.access import http_request_id, note_usage
from pagefall.api.cache_header import ANSWER, cache_header, wants_cache_header
from pagefall.api.engine import Engine, Generation
from pagefall.api.errors import internal_error
from pagefall.api.event_stream import EventStream, NamedEvent
from pagefall.api.json_response import json_response
from pagefall.api.tasks import run_all, run_until_disconnect
from pagefall.errors import RequestError
from pagefall.messages import FinishReason, PrefixReport
from pagefall.text.requests import GenerateRequest, TextDelta, TextLogprob, Usage

_log = logging.getLogger("pagefall.api")

_CLOSE_SECONDS: Final = 5.0

_MANY_LOGPROBS: Final = 50
"""Each may list 20 more tokens, so writing more of them than this goes to a worker thread."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt's whole answer, and the prompt's account."""

    text: str
    logprobs: tuple[TextLogprob, ...]
    finish_reason: FinishReason
    usage: Usage
    prefix: PrefixReport | None
    prompt_tail: str = ""
    """See `TextDelta`."""
    deltas: tuple[TextDelta, ...] = ()
    """The answer as it came."""


class AnswerFormat(Protocol):
    """How one endpoint writes answers. An instance serves one request and may remember what it has written."""

    def chunks(self, index: int, delta: TextDelta) -> Sequence[msgspec.Struct]:
        """The events for a delta of prompt `index`; none if it shows nothing."""

    def usage_chunk(self, usages: Sequence[Usage]) -> msgspec.Struct | None:
        """The event after the last delta, None if the client did not ask for it. `usages[i]` is of prompt `i`."""

    def complete(self, answers: Sequence[Answer]) -> msgspec.Struct:
        """The answer to a request that does not stream."""


@runtime_checkable
class NamedEventFormat(AnswerFormat, Protocol):
    """Of an endpoint whose stream is of `NamedEvent`s and ends with one of them, not with `[DONE]`."""

    def opening(self) -> Sequence[NamedEvent]:
        """The events that need no delta, once the engine has accepted the request."""

    def failure(self, error: RequestError) -> Sequence[NamedEvent]:
        """The events that end an answer which cannot be completed."""


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A validated body: what to generate, and how to write it."""

    prompts: tuple[GenerateRequest, ...]
    format: AnswerFormat
    stream: bool


async def serve(engine: Engine, request: ClientRequest, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers one request whose body has been read. Raises `RequestError` only before the first byte."""
    wants_header = wants_cache_header(scope)
    http_id = http_request_id(scope)
    prompts = [msgspec.structs.replace(prompt, http_request_id=http_id) for prompt in request.prompts]

    async def work() -> None:
        async with _submitted(engine, prompts) as generations:
            if request.stream:
                # The status waits for the first tokens only where the header does.
                begun = await _first_deltas(generations) if wants_header else [[] for _ in generations]
                headers = _headers([delta.prefix for deltas in begun for delta in deltas], wants=wants_header)
                await _stream(generations, begun, headers, request.format, scope, send)
            else:
                answers = await _collect(generations)
                note_usage(scope, [answer.usage for answer in answers])
                response = await _whole_response(request.format, answers)
                response.headers.update(_headers([answer.prefix for answer in answers], wants=wants_header))
                await response(scope, receive, send)

    await run_until_disconnect(receive, work)


@asynccontextmanager
async def _submitted(engine: Engine, prompts: Sequence[GenerateRequest]) -> AsyncIterator[list[Generation]]:
    """All at once, so that the scheduler sees them together. The first refusal withdraws the others and is raised."""
    generations: dict[int, Generation] = {}
    async with AsyncExitStack() as stack:

        async def submit(index: int) -> None:
            generations[index] = generation = await engine.generate(prompts[index])
            stack.push_async_callback(_close, generation)

        await run_all([partial(submit, index) for index in range(len(prompts))])
        yield [generations[index] for index in range(len(prompts))]


async def _close(generation: Generation) -> None:
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        await generation.aclose()


async def _collect(generations: Sequence[Generation]) -> list[Answer]:
    answers: dict[int, Answer] = {}

    async def collect(index: int) -> None:
        deltas = [delta async for delta in generations[index]]
        assert deltas[-1].finish_reason is not None
        assert deltas[-1].usage is not None
        answers[index] = Answer(
            text="".join(delta.text for delta in deltas),
            logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
            finish_reason=deltas[-1].finish_reason,
            usage=deltas[-1].usage,
            prefix=deltas[0].prefix,
            prompt_tail=deltas[0].prompt_tail,
            deltas=tuple(deltas),
        )

    await run_all([partial(collect, index) for index in range(len(generations))])
    return [answers[index] for index in range(len(generations))]


async def _whole_response(format: AnswerFormat, answers: Sequence[Answer]) -> Response:
    if sum(len(answer.logprobs) for answer in answers) > _MANY_LOGPROBS:
        return await anyio.to_thread.run_sync(lambda: json_response(format.complete(answers)))
    return json_response(format.complete(answers))


async def _first_deltas(generations: Sequence[Generation]) -> list[list[TextDelta]]:
    """One of each, which has the prompt's account. Raises what the engine does if that comes first."""
    deltas: dict[int, TextDelta] = {}

    async def take(index: int) -> None:
        deltas[index] = await anext(generations[index])

    await run_all([partial(take, index) for index in range(len(generations))])
    return [[deltas[index]] for index in range(len(generations))]


def _headers(reports: Sequence[PrefixReport | None], *, wants: bool) -> dict[str, str]:
    known = [report for report in reports if report is not None]
    return {ANSWER: cache_header(known)} if wants and known else {}


async def _stream(
    generations: Sequence[Generation],
    begun: Sequence[Sequence[TextDelta]],
    headers: Mapping[str, str],
    format: AnswerFormat,
    scope: Scope,
    send: Send,
) -> None:
    """`begun` are the deltas that were taken from each generation already."""
    events = EventStream(send)
    usages: dict[int, Usage] = {}

    async def forward(index: int) -> None:
        for delta in begun[index]:
            await show(index, delta)
        async for delta in generations[index]:
            await show(index, delta)

    async def show(index: int, delta: TextDelta) -> None:
        if delta.usage is not None:
            usages[index] = delta.usage
        for chunk in format.chunks(index, delta):
            await events.send(chunk)

    await events.start(headers)
    try:
        if isinstance(format, NamedEventFormat):
            for event in format.opening():
                await events.send(event)
        await run_all([partial(forward, index) for index in range(len(generations))])
    except RequestError as error:
        await _fail(events, format, error)
    except Exception:  # noqa: BLE001 - the status is sent: what is left is to say so in the stream
        _log.exception("a stream failed after it had begun")
        await _fail(events, format, internal_error())
    else:
        in_order = [usages[index] for index in range(len(generations))]
        note_usage(scope, in_order)
        usage_chunk = format.usage_chunk(in_order)
        if usage_chunk is not None:
            await events.send(usage_chunk)
        if isinstance(format, NamedEventFormat):
            await events.close()
        else:
            await events.finish()


async def _fail(events: EventStream, format: AnswerFormat, error: RequestError) -> None:
    if not isinstance(format, NamedEventFormat):
        await events.fail(error)
        return
    for event in format.failure(error):
        await events.send(event)
    await events.close()
