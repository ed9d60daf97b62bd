"""Which worker keeps which response of /v1/responses: whoever goes on from one, or asks for it, is sent there."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers

from pagefall.router.fan_out import FanOut
from pagefall.router.routing import WorkerId
from pagefall.router.workers import WorkerRegistry

_MAX_REMEMBERED: Final = 100_000
"""Some 20 MB. Of others the workers are asked."""

_MAY_COME_BACK: Final = frozenset({"joining", "healthy", "unhealthy"})


class ResponseHomes:
    def __init__(self, registry: WorkerRegistry, fan_out: FanOut, *, max_remembered: int = _MAX_REMEMBERED) -> None:
        self._registry = registry
        self._fan_out = fan_out
        self._max_remembered = max_remembered
        self._homes: OrderedDict[str, WorkerId] = OrderedDict()

    def kept(self, response_id: str, worker_id: WorkerId) -> None:
        """`worker_id` has made it. It need not keep it: then it says so itself, when it is asked."""
        self._homes[response_id] = worker_id
        self._homes.move_to_end(response_id)
        if len(self._homes) > self._max_remembered:
            self._homes.popitem(last=False)

    async def find(self, response_id: str, headers: Headers, request_id: str) -> WorkerId | None:
        """Asks every worker that is ready, with the key in `headers`, where this router has not seen the response made.
        None where nobody has it, or who had it is gone: then any worker says so.
        """
        if (known := self._homes.get(response_id)) is not None:
            worker = self._registry.get(known)
            return known if worker is not None and worker.state in _MAY_COME_BACK else None
        ready = [worker for worker in self._registry.workers if worker.state == "healthy"]
        if len(ready) > 1:
            target = f"/v1/responses/{quote(response_id, safe='')}"
            for reply in await self._fan_out.ask(ready, "GET", target, headers, request_id):
                if reply.is_success:
                    self.kept(response_id, reply.worker.worker_id)
                    return reply.worker.worker_id
        return None
