"""A line of a log of requests, as an observation: OpenAI's bodies, batch files, Pagefall's request log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from pagefall.api.wire_tools import WireFunction, WireTool, WireToolCall, functions_of, tool_calls_of, tools_of
from pagefall.errors import PagefallError, RequestError
from pagefall.insight.diagnosis.observations import Observation, message_text
from pagefall.messages import MissedPages, MissReason, PrefixReport, TokenIds, TokenSource
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt, Tool, ToolCall
from pagefall.text.tokenizer import Tokenizer
from pagefall.text.tool_schema import as_function

_PATH: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


class BadLineError(PagefallError):
    """A line that cannot be used. The message names the field and what is wrong with it, not the line."""


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class _Body(msgspec.Struct):
    """Other fields are of no interest here: whatever else the request asked for, its prompt is this."""

    messages: list[_Message] | None = None
    prompt: str | list[str | int | list[int]] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    time: float | str | None = None
    worker: str | int | None = None


class _Line(_Body):
    body: _Body | None = None
    event: str | None = None
    cache_salt_hash: str | None = None
    num_prompt_tokens: int | None = None
    num_known_tokens: int = 0
    num_tokens_by_source: dict[TokenSource, int] | None = None
    num_missed_tokens: dict[MissReason, int] | None = None
    saved_seconds: float = 0.0
    is_prompt_cut: bool = False


class LineReader:
    """Turns lines into observations with one tokenizer, for pages of one size."""

    def __init__(self, tokenizer: Tokenizer, page_size: int) -> None:
        self._tokenizer = tokenizer
        self._page_size = page_size
        self._decoder = msgspec.json.Decoder(_Line)

    def read(self, line: bytes) -> Iterator[Observation]:
        """One for each prompt of the line; none for an empty line and for what a request log says of other things.

        Raises `BadLineError`.
        """
        if not line.strip():
            return
        outer = self._decode(line)
        if outer.event in ("refused", "lost"):
            return
        body: _Body = outer if outer.body is None else outer.body
        field = "" if outer.body is None else "body."
        time = _time(body.time if outer.time is None else outer.time)
        worker = body.worker if outer.worker is None else outer.worker
        salt = body.cache_salt or outer.cache_salt or outer.cache_salt_hash or ""
        for prompt, token_ids in self._prompts(body, field):
            yield Observation(
                token_ids=token_ids,
                prompt=prompt,
                tools=_shown_tools(body, prompt),
                time=time,
                cache_salt=salt,
                worker=None if worker is None else str(worker),
                report=self._report(outer, len(token_ids)),
            )

    def _decode(self, line: bytes) -> _Line:
        try:
            return self._decoder.decode(line)
        except msgspec.ValidationError as error:
            message = str(error)
            found = _PATH.search(message)
            if found is None:
                raise BadLineError(message) from error
            raise BadLineError(f"{found['path']}: {message[: found.start()]}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadLineError(f"not JSON: {error}") from error

    def _prompts(self, body: _Body, field: str) -> Iterator[tuple[ChatPrompt | TextPrompt | None, TokenIds]]:
        match body.messages, body.prompt:
            case None, None:
                raise BadLineError(
                    f"{field}messages or {field}prompt is missing (a request log has neither where prompts are "
                    "redacted, or came as token ids)"
                )
            case list() as messages, None:
                chat = ChatPrompt(
                    messages=tuple(_message(each, f"{field}messages[{i}]") for i, each in enumerate(messages)),
                    tools=_functions(body),
                    template_kwargs=body.chat_template_kwargs or {},
                )
                if not chat.messages:
                    raise BadLineError(f"{field}messages: it is empty")
                text = self._rendered(chat, field)
                tools = body.tools or body.functions
                if tools and not (chat.tools and self._tokenizer.has_chat_template):
                    # Nobody knows how these would be written: before all messages, as most templates do.
                    text = msgspec.json.encode(tools).decode() + "\n" + text
                yield chat, self._tokenizer.encode(text, add_special_tokens=False)
            case None, str() | list() as prompts:
                yield from self._texts(prompts, field)
            case _:
                raise BadLineError(
                    f"{field}messages and {field}prompt contradict each other: a request has one of them"
                )

    def _texts(
        self, prompts: str | list[str | int | list[int]], field: str
    ) -> Iterator[tuple[TextPrompt | None, TokenIds]]:
        """Text, token ids, or a list of either."""
        if not prompts:
            raise BadLineError(f"{field}prompt: it is empty")
        several = [prompts] if isinstance(prompts, str) or isinstance(prompts[0], int) else prompts
        for prompt in several:
            if isinstance(prompt, str):
                yield TextPrompt(prompt), self._tokenizer.encode(prompt, add_special_tokens=True)
            elif isinstance(prompt, list):
                yield None, _token_ids(prompt, field)
            else:
                raise BadLineError(f"{field}prompt: it mixes token ids with other things")

    def _rendered(self, chat: ChatPrompt, field: str) -> str:
        if not self._tokenizer.has_chat_template:
            return "".join(f"{message.role}\n{message_text(message)}\n" for message in chat.messages)
        try:
            return self._tokenizer.apply_chat_template(
                chat.messages, tools=chat.tools, template_kwargs=chat.template_kwargs
            )
        except RequestError as error:
            raise BadLineError(f"{field}{error.param or 'messages'}: {error.message}") from error

    def _report(self, line: _Line, num_tokens: int) -> PrefixReport | None:
        """What a request log counted. Its misses have lost their places: all of them begin where the hit ends."""
        if line.event != "ended" or not line.num_tokens_by_source or line.is_prompt_cut:
            return None
        sources = line.num_tokens_by_source
        num_cached = sum(sources.get(tier, 0) for tier in ("device", "host", "storage"))
        first = num_cached // self._page_size
        return PrefixReport(
            page_size=self._page_size,
            num_prompt_tokens=num_tokens,
            num_tokens_by_source=sources,
            num_known_tokens=line.num_known_tokens,
            misses=tuple(
                MissedPages(reason=reason, first_page=first, num_pages=-(-missed // self._page_size), num_tokens=missed)
                for reason, missed in (line.num_missed_tokens or {}).items()
            ),
            saved_seconds=line.saved_seconds,
        )


def _message(message: _Message, field: str) -> ChatMessage:
    parts: list[str] = []
    if isinstance(message.content, str):
        parts.append(message.content)
    for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.type not in ("text", "input_text", "output_text") or part.text is None:
            raise BadLineError(f"{field}.content[{index}]: {part.type!r} is no text")
        parts.append(part.text)
    calls = _calls(message.tool_calls or ())
    if calls is None:
        parts.append(msgspec.json.encode(message.tool_calls).decode())
    return ChatMessage(
        "system" if message.role == "developer" else message.role,
        "\n".join(parts),
        message.name,
        tool_calls=calls or (),
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
    )


def _calls(calls: Any) -> tuple[ToolCall, ...] | None:
    """Those of a request log, or OpenAI's; None where they are neither."""
    try:
        return msgspec.convert(calls, tuple[ToolCall, ...])
    except msgspec.ValidationError:
        pass
    try:
        return tool_calls_of(msgspec.convert(calls, list[WireToolCall]), "tool_calls")
    except (msgspec.ValidationError, RequestError):
        return None


def _functions(body: _Body) -> tuple[Tool, ...]:
    """As the server takes them: with their keys in one order. Nothing where one of them is no function."""
    try:
        if body.tools:
            return tools_of(msgspec.convert(body.tools, list[WireTool]))
        return functions_of(msgspec.convert(body.functions or [], list[WireFunction]))
    except (msgspec.ValidationError, RequestError):
        return ()


def _shown_tools(body: _Body, prompt: ChatPrompt | TextPrompt | None) -> list[Any] | None:
    functions = prompt.tools if isinstance(prompt, ChatPrompt) else ()
    return [as_function(tool) for tool in functions] or body.tools or body.functions or None


def _token_ids(prompt: Sequence[object], field: str) -> TokenIds:
    token_ids = [each for each in prompt if isinstance(each, int) and 0 <= each < 1 << 32]
    if len(token_ids) != len(prompt):
        raise BadLineError(f"{field}prompt: not all of it are token ids, which are from 0 to 4294967295")
    return np.array(token_ids, dtype=np.uint32)


def _time(value: float | str | None) -> float | None:
    """Unix seconds; text is ISO 8601, in UTC where it names no other zone."""
    if not isinstance(value, str):
        return value
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError as error:
        raise BadLineError(f"time: {value[:50]!r} is neither Unix seconds nor ISO 8601") from error
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
