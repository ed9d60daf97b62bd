"""Traces: requests from a JSONL file, Mooncake's (lengths and hashes of blocks) or one with the prompts themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from pagefall.bench.load.shapes import Trace, scaled_count
from pagefall.bench.load.turns import Message, Piece, Session, Turn, literal_pieces
from pagefall.errors import ConfigError

BLOCK_TOKENS: Final = 512
"""What one of Mooncake's hashes stands for."""

_MS: Final = 1_000.0


class _ContentPart(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _WireMessage(msgspec.Struct):
    role: str
    content: str | list[_ContentPart] | None = None


class _Row(msgspec.Struct):
    """Either form. `timestamp` is in milliseconds in Mooncake's, in seconds in the other."""

    timestamp: float | None = None
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: list[int] | None = None
    prompt: str | None = None
    messages: list[_WireMessage] | None = None
    max_tokens: int | None = None


def load_trace(shape: Trace, *, scale: float = 1.0, needs_times: bool = True) -> list[Session]:
    """The requests of the file in the order of their times, each a session of its own; `scale` is for its lengths.

    Times count from the first request, divided by `trace_speed`. Raises `ConfigError` that names the file and line.
    """
    try:
        lines = Path(shape.trace).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--trace: {shape.trace}: {error.strerror}") from error
    rows = list(_rows(lines, shape.trace, needs_times=needs_times))
    if not rows:
        raise ConfigError(f"--trace: {shape.trace} has no requests")
    origin = min(at for at, _ in rows)
    found: list[Session] = []
    for at, row in sorted(rows, key=lambda timed: timed[0]):
        seconds = (at - origin) / shape.trace_speed
        found.append(Session(turns=(_turn(row, shape, scale),), at_seconds=seconds if needs_times else None))
    return found


def has_messages(sessions: Iterable[Session]) -> bool:
    """Whether any of a trace's prompts is a chat."""
    return any(isinstance(turn.literal, tuple) for session in sessions for turn in session.turns)


def _rows(lines: Iterable[bytes], path: str, *, needs_times: bool) -> Iterator[tuple[float, _Row]]:
    """Time in seconds and row of each line that is not blank."""
    decoder = msgspec.json.Decoder(_Row)
    is_mooncake: bool | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
            fault = _fault(row, needs_times=needs_times)
        except msgspec.DecodeError as error:
            fault = str(error)
        if fault is None and is_mooncake not in (None, row.hash_ids is not None):
            fault = "has another form than the lines before"
        if fault is not None:
            raise ConfigError(f"--trace: {path}, line {number}: {fault}")
        is_mooncake = row.hash_ids is not None
        yield (row.timestamp or 0.0) / (_MS if is_mooncake else 1.0), row


def _fault(row: _Row, *, needs_times: bool) -> str | None:
    """What is wrong with the row; None: nothing."""
    if needs_times and row.timestamp is None:
        return "no timestamp; with --concurrency or --request-rate it may be without"
    if row.timestamp is not None and not (0 <= row.timestamp < math.inf):
        return f"timestamp: {row.timestamp} is no time; use a number from 0 on"
    for name, value in (("output_length", row.output_length), ("max_tokens", row.max_tokens)):
        if value is not None and value < 1:
            return f"{name}: {value} is too small; use 1 or more"
    if row.hash_ids is None:
        if (row.prompt is None) == (row.messages is None):
            return "wants hash_ids and input_length, or one of messages and prompt"
        return "messages: empty" if row.messages == [] else "prompt: empty" if row.prompt == "" else None
    if row.input_length is None:
        return "hash_ids without input_length"
    if row.input_length < 1:
        return f"input_length: {row.input_length} is too small; use 1 or more"
    num_blocks = math.ceil(row.input_length / BLOCK_TOKENS)
    if len(row.hash_ids) != num_blocks:
        return (
            f"hash_ids: {len(row.hash_ids)} for {row.input_length} tokens, "
            f"which are {num_blocks} blocks of {BLOCK_TOKENS}"
        )
    return None


def _turn(row: _Row, shape: Trace, scale: float) -> Turn:
    given = row.output_length or row.max_tokens
    output_tokens = shape.output_tokens if given is None else scaled_count(given, scale)
    details: dict[str, Any] = {"part": "trace", "output_tokens": output_tokens}
    if row.hash_ids is not None:
        assert row.input_length is not None
        return Turn(pieces=tuple(_blocks(row.hash_ids, row.input_length, scale)), **details)
    if row.prompt is not None:
        return Turn(pieces=literal_pieces(row.prompt), literal=row.prompt, **details)
    assert row.messages is not None
    messages = tuple(Message(role=message.role, content=_content(message)) for message in row.messages)
    text = "".join(f"{message.role}\n{message.content}\n" for message in messages)
    return Turn(pieces=literal_pieces(text), literal=messages, **details)


def _blocks(hash_ids: list[int], input_length: int, scale: float) -> Iterator[Piece]:
    """A block that is not full is known only to a prompt that ends in the same place."""
    for number, hash_id in enumerate(hash_ids):
        num_tokens = min(BLOCK_TOKENS, input_length - number * BLOCK_TOKENS)
        key = f"block {hash_id}" if num_tokens == BLOCK_TOKENS else f"block {hash_id} to {num_tokens}"
        yield Piece(key=key, num_tokens=scaled_count(num_tokens, scale))


def _content(message: _WireMessage) -> str:
    """Its text; of several parts, that of the text parts."""
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content if part.text is not None)
    return message.content or ""
