"""What a Redis server says about the values it holds, and about itself."""

from __future__ import annotations

import time
from typing import Final

from pagefall_storage.errors import StorageError
from pagefall_storage.redis_commands import command
from pagefall_storage.redis_replies import ReplyError
from pagefall_storage.redis_servers import Server

_NAMES_AT_ONCE: Final = 512


async def list_values(
    server: Server, prefix: bytes, cursor: int
) -> tuple[int | None, list[tuple[str, int, float | None]]]:
    """Some of the strings whose names begin with `prefix`: the rest of the name, the length, and when it was last used.

    Begin with the cursor 0; None instead of the next one says that there are no more. Listing does not count as use,
    from Redis 7.2 on. Raises `StorageError`.
    """
    (page,) = await server.call([command(b"SCAN", cursor, b"MATCH", prefix + b"*", b"COUNT", _NAMES_AT_ONCE)])
    if isinstance(page, ReplyError):
        raise StorageError(f"{server.name}: {page}")
    assert isinstance(page, list)
    next_cursor, names = int(page[0]), page[1]
    questions = [question for name in names for question in (_idle_seconds(name), command(b"STRLEN", name))]
    quiet, loud = command(b"CLIENT", b"NO-TOUCH", b"ON"), command(b"CLIENT", b"NO-TOUCH", b"OFF")
    _, *replies, _ = await server.call([quiet, *questions, loud]) if names else (None, None)
    now = time.time()
    values = [
        (name[len(prefix) :].decode(errors="replace"), length, now - idle if isinstance(idle, int) else None)
        for name, idle, length in zip(names, replies[::2], replies[1::2], strict=True)
        if isinstance(length, int) and idle is not None  # else it is no string, or gone by now
    ]
    return next_cursor or None, values


async def read_info(server: Server) -> dict[str, int]:
    """The numbers among what `INFO` tells; nothing where the user may not ask. Raises `RedisUnavailableError`."""
    numbers: dict[str, int] = {}
    for reply in await server.call([command(b"INFO", b"stats"), command(b"INFO", b"memory")]):
        if isinstance(reply, bytes):
            pairs = (line.partition(":")[::2] for line in reply.decode(errors="replace").splitlines())
            numbers |= {name: int(value) for name, value in pairs if value.isdecimal()}
    return numbers


def _idle_seconds(name: bytes) -> bytes:
    """Answered with an error under an LFU policy."""
    return command(b"OBJECT", b"IDLETIME", name)
