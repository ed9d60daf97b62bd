"""Who was chosen when: the last tie-breaker of every policy."""

from __future__ import annotations

from collections.abc import Sequence

from pagefall.router.routing import WorkerId


class Turns:
    def __init__(self) -> None:
        self._chosen_at: dict[WorkerId, int] = {}
        self._turn = 0

    def take(self, worker_ids: Sequence[WorkerId]) -> WorkerId:
        """The one that was not chosen for longest, of those never chosen the first. It is the last one from now on."""
        self._turn += 1
        chosen = min(worker_ids, key=lambda worker_id: self._chosen_at.get(worker_id, 0))
        self._chosen_at[chosen] = self._turn
        return chosen

    def forget(self, worker_id: WorkerId) -> None:
        self._chosen_at.pop(worker_id, None)
