"""A worker that computes nothing, for timing what is before it: `python -m pagefall.bench.instant_worker`.

It prints its URL, answers every GET with `{}` and every POST with a stream of a few events, the first at once.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

_NUM_EVENTS: Final = 4
_EVENT: Final = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" x"}}]}\n\n'
)
_STREAM: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_DOCUMENT: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


async def main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(_content_length(head))
            if head.startswith(b"GET"):
                writer.write(_DOCUMENT)
                continue
            writer.write(_STREAM + _chunk(_EVENT))
            for _ in range(_NUM_EVENTS - 1):
                await asyncio.sleep(0)
                writer.write(_chunk(_EVENT))
            writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the other end has gone
    finally:
        writer.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


if __name__ == "__main__":
    asyncio.run(main())
