"""The wire format of `GET /cache/events`: what enters and leaves each tier of one server, ordered and numbered.

The answer is a stream of JSON lines:

    hello, then either  held*, snapshot_end   the contents as of event `number`, in parts
                or      (nothing)             where `?epoch=E&after=N` named events that are still remembered
    then, for ever:     entered | left | cleared, numbered without gaps; beat while nothing happens

A reader that sees a number that does not follow the last one has missed something, and connects anew. `epoch` is
another one whenever the server was restarted, or has another store: numbers of one say nothing about another.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import numpy as np

from pagefall.messages import Tier

NAME_BYTES: Final = 8
"""A page is named by the first eight bytes of its page key."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Always the first line. `number` is that of the last event there was; `namespace` (hex) and `page_size` are what a
    prompt's page keys have to be computed with. `store`: servers that read each other's stored pages have the same one;
    None without a store. `num_device_pages`: how many pages the device holds; None where that is not said.
    """

    epoch: str
    number: int
    model: str
    namespace: str
    page_size: int
    has_snapshot: bool
    store: str | None = ""
    num_device_pages: int | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True, tag="held"):
    """A part of the snapshot: pages that are in `tier`. `names`: `NAME_BYTES` each, one after the other."""

    tier: Tier
    names: bytes


class SnapshotEnd(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot_end"):
    """The snapshot is complete; the next event has number `number + 1`."""

    number: int


class Entered(msgspec.Struct, frozen=True, kw_only=True, tag="entered"):
    """Pages that are in `tier` from now on. In the store they are for every server that has the same one."""

    number: int
    tier: Tier
    names: bytes


class Left(msgspec.Struct, frozen=True, kw_only=True, tag="left"):
    """Pages that are not in `tier` any more. Nothing is heard of a store that deletes by itself."""

    number: int
    tier: Tier
    names: bytes


class Cleared(msgspec.Struct, frozen=True, kw_only=True, tag="cleared"):
    """Nothing is in `tier` any more, as far as this server knows."""

    number: int
    tier: Tier


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """The server lives; `number` is that of its last event."""

    number: int


KvEvent: TypeAlias = Entered | Left | Cleared
KvLine: TypeAlias = Hello | Held | SnapshotEnd | Entered | Left | Cleared | Beat

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(KvLine)


def encode_line(line: KvLine) -> bytes:
    """One line, its newline included."""
    return _encoder.encode(line) + b"\n"


def decode_line(line: bytes | str) -> KvLine:
    """Raises `msgspec.ValidationError` or `msgspec.DecodeError` for what is no line of this format."""
    decoded: KvLine = _decoder.decode(line)
    return decoded


def page_names(keys: bytes) -> bytes:
    """The names of pages, from their page keys (32 bytes each)."""
    return np.frombuffer(keys, dtype="<u8")[::4].tobytes()


def names_as_ints(names: bytes) -> list[int]:
    """The same as unsigned little-endian numbers, one a page."""
    numbers: list[int] = np.frombuffer(names, dtype="<u8").tolist()
    return numbers
