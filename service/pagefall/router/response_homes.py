"""Which worker keeps which response of /v1/responses: what goes on from one, or is about one, is sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import anyio
from starlette.datastructures import Headers

from pagefall.router.bodies import Body
from pagefall.router.fan_out import FanOut
from pagefall.router.gate import RefusedError, no_worker
from pagefall.router.routing import WorkerId
from pagefall.router.workers import Worker, WorkerRegistry

_MAX_REMEMBERED: Final = 100_000
"""Some 20 MB. Of others the workers are asked."""

_MAX_ID_CHARACTERS: Final = 128
"""No worker makes longer ones."""

_AWAY_SECONDS: Final = 60.0
"""One that has not been healthy for longer is not expected to know anything of before."""

_RESPONSES: Final = "/v1/responses"
_CANCEL: Final = "/cancel"


def named_response(path: str, body: Body) -> str | None:
    """The id of the response that a POST goes on from, or is about."""
    if path in (_RESPONSES, f"{_RESPONSES}/input_tokens"):
        return body.previous_response_id
    if path.startswith(f"{_RESPONSES}/") and path.endswith(_CANCEL):
        return path[len(_RESPONSES) + 1 : -len(_CANCEL)]
    return None


def keeper_is_away() -> RefusedError:
    return no_worker("the one that keeps this response does not answer")


class ResponseHomes:
    """A `WorkerListener`."""

    def __init__(
        self,
        registry: WorkerRegistry,
        fan_out: FanOut,
        *,
        max_remembered: int = _MAX_REMEMBERED,
        patience_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """`patience_seconds`: how long a request waits for the one worker that can answer it."""
        self._registry = registry
        self._fan_out = fan_out
        self._max_remembered = max_remembered
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._homes: OrderedDict[str, WorkerId] = OrderedDict()
        self._away: dict[WorkerId, float] = {}
        """Workers that are not healthy, and since when."""

    def kept(self, response_id: str, worker_id: WorkerId) -> None:
        """`worker_id` has made it. It need not keep it: then it says so itself, when it is asked."""
        self._homes[response_id] = worker_id
        self._homes.move_to_end(response_id)
        if len(self._homes) > self._max_remembered:
            self._homes.popitem(last=False)

    async def find(self, response_id: str, headers: Headers, request_id: str) -> WorkerId | None:
        """Where a request about it has to go. None: to anybody, who says that it is not there, since nobody has it, or
        who had it is gone.

        Asks every worker that answers, with the key in `headers`, where this router has not seen the response made.
        Raises `RefusedError` where the worker that has it, or one that may have it, does not answer now.
        """
        if len(response_id) > _MAX_ID_CHARACTERS:
            return None
        if (known := self._homes.get(response_id)) is None:
            return await self._look_for(response_id, headers, request_id)
        with anyio.move_on_after(self._patience_seconds):
            while (worker := self._registry.get(known)) is not None:
                if worker.answers:
                    return known
                await self._registry.wait_for_change()
            return None
        raise keeper_is_away()

    async def _look_for(self, response_id: str, headers: Headers, request_id: str) -> WorkerId | None:
        if len(self._registry.workers) == 1:
            return None  # it says itself whether it has it
        asked = [worker for worker in self._registry.workers if worker.answers]
        target = f"{_RESPONSES}/{quote(response_id, safe='')}"
        replies = await self._fan_out.ask(
            asked, "GET", target, headers, request_id, is_enough=lambda reply: reply.is_success
        )
        for reply in replies:
            if reply.is_success:
                self.kept(response_id, reply.worker.worker_id)
                return reply.worker.worker_id
        since = self._clock() - _AWAY_SECONDS
        if any(reply.is_failure for reply in replies) or any(away_at > since for away_at in self._away.values()):
            raise no_worker("one that may keep this response does not answer")
        return None

    def added(self, worker: Worker) -> None:
        self._away[worker.worker_id] = self._clock()

    def ready(self, worker: Worker) -> None:
        self._away.pop(worker.worker_id, None)

    def lost(self, worker: Worker) -> None:
        self._away.setdefault(worker.worker_id, self._clock())

    def removed(self, worker: Worker) -> None:
        self._away.pop(worker.worker_id, None)
