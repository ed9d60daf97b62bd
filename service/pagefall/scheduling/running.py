"""The requests that run: each holds a lease and has a share in (almost) every step."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from pagefall.messages import RequestId
from pagefall.scheduling.request import Running

_SENIORITY: Final = attrgetter("request.seniority")


class RunningTable:
    def __init__(self) -> None:
        self._running: dict[RequestId, Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def get(self, request_id: RequestId) -> Running | None:
        return self._running.get(request_id)

    def __getitem__(self, request_id: RequestId) -> Running:
        """Raises `KeyError` for a request that does not run."""
        return self._running[request_id]

    def __contains__(self, running: Running) -> bool:
        """Whether this very phase of the request is the current one."""
        return self._running.get(running.request.request_id) is running

    def put(self, running: Running) -> None:
        """Adds the request, or replaces its earlier phase."""
        self._running[running.request.request_id] = running

    def remove(self, running: Running) -> None:
        del self._running[running.request.request_id]

    def in_order(self) -> list[Running]:
        """The most senior first: higher priority, then earlier arrival."""
        return sorted(self._running.values(), key=_SENIORITY)
