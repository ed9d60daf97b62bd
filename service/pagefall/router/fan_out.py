"""One question to several workers at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from starlette.datastructures import Headers

from pagefall.api.tasks import run_all
from pagefall.router.connections import RawHeaders
from pagefall.router.upstream import KEY_HEADERS, UpstreamError, Upstreams
from pagefall.router.workers import Worker

_MAX_BYTES: Final = 64 << 20
_TYPE: Final = b"content-type"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """`status` None: there was no answer, and `error` says why."""

    worker: Worker
    status: int | None = None
    body: bytes = b""
    error: str | None = None

    @property
    def is_failure(self) -> bool:
        """It says nothing of what was asked for."""
        return self.status is None or self.status >= 500

    @property
    def is_success(self) -> bool:
        return self.status is not None and self.status < 400

    def document(self) -> Any:
        """The JSON in it; None where there is none."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


class FanOut:
    def __init__(self, upstreams: Upstreams, *, timeout_seconds: float = 10.0) -> None:
        self._upstreams = upstreams
        self._timeout_seconds = timeout_seconds

    async def ask(
        self,
        workers: Sequence[Worker],
        method: str,
        target: str,
        headers: Headers,
        request_id: str,
        *,
        body: bytes = b"",
        is_enough: Callable[[Reply], bool] = lambda reply: False,
    ) -> list[Reply]:
        """All at once; the answers in the order of `workers`. The client's key goes along, where workers have none.

        With one that `is_enough` the others are not waited for.
        """
        kept = [(name, value) for name, value in headers.raw if name in KEY_HEADERS or (body and name == _TYPE)]
        sent = self._upstreams.authorized([*kept, (b"x-request-id", request_id.encode("latin-1"))])
        replies: dict[int, Reply] = {}

        async def ask(index: int, worker: Worker) -> None:
            reply = replies[index] = await self._ask(worker, method, target, sent, body)
            if is_enough(reply):
                scope.cancel()

        with anyio.CancelScope() as scope:
            await run_all([partial(ask, index, worker) for index, worker in enumerate(workers)])
        return [replies[index] for index in sorted(replies)]

    async def _ask(self, worker: Worker, method: str, target: str, headers: RawHeaders, body: bytes) -> Reply:
        try:
            with anyio.fail_after(self._timeout_seconds):
                response = await self._upstreams.send(worker.worker_id, method, target, headers, body)
                try:
                    return Reply(worker=worker, status=response.status, body=await response.read(_MAX_BYTES))
                finally:
                    response.close()
        except TimeoutError:
            return Reply(worker=worker, error=f"no answer in {self._timeout_seconds:g} seconds")
        except UpstreamError as error:
            return Reply(worker=worker, error=f"no answer: {error}")
