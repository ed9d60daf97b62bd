"""The commands of a Redis store, as they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import hiredis


def command(name: bytes, *arguments: bytes | int) -> bytes:
    packed: bytes = hiredis.pack_command((name, *arguments))  # type: ignore[arg-type] # "tuple" there is of any length
    return packed


def set_commands(items: Iterable[tuple[bytes, memoryview]], *, ttl_seconds: int | None) -> Iterator[bytes | memoryview]:
    """`SET` for each name and value. The values are not copied."""
    expiry = b"" if ttl_seconds is None else b"$2\r\nEX\r\n$%d\r\n%d\r\n" % (len(b"%d" % ttl_seconds), ttl_seconds)
    num_arguments = 3 if ttl_seconds is None else 5
    end_of_last = b""
    for name, value in items:
        head = b"*%d\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (num_arguments, len(name), name, value.nbytes)
        yield end_of_last + head
        yield value
        end_of_last = b"\r\n" + expiry
    yield end_of_last
