"""What a store tells of itself, when it is asked now and then: which one it is, and how much it holds."""

from __future__ import annotations

import logging

from pagefall.tiers.guarded_store import GuardedStore
from pagefall_storage.identity import identify
from pagefall_storage.protocol import Usage

_log = logging.getLogger("pagefall.storage")


class StoreFacts:
    """No failure counts against the store, and what it told last stays. One that is left alone is not asked.

    `identity` is the same for servers that share the store. Both are None until it has told.
    """

    def __init__(self, store: GuardedStore) -> None:
        self.identity: str | None = None
        self.usage: Usage | None = None
        self._store = store
        self._tells_identity = True  # as was logged
        self._tells_usage = True

    async def ask(self) -> None:
        """Both, the quicker one first."""
        await self.ask_identity()
        await self.ask_usage()

    async def ask_identity(self) -> None:
        """It may well be that the store cannot tell."""
        if self._store.breaker.state != "closed":
            return
        answer = await self._store.ask_aside(self._identify)
        if isinstance(answer, BaseException):
            self._complain("does not say which one it is", answer, is_first=self._tells_identity)
        elif answer is not None:
            self.identity = answer
        self._tells_identity = not isinstance(answer, BaseException)

    async def ask_usage(self) -> None:
        """How much it holds."""
        if self._store.breaker.state != "closed":
            return
        answer = await self._store.ask_aside(self._use)
        if isinstance(answer, Usage):
            self.usage = answer
        else:
            self._complain("does not tell how much it holds", answer, is_first=self._tells_usage)
        self._tells_usage = isinstance(answer, Usage)

    async def _identify(self) -> str | None:
        return await identify(self._store.backend)

    async def _use(self) -> Usage:
        return await self._store.backend.usage()

    def _complain(self, what: str, answer: object, *, is_first: bool) -> None:
        if is_first:
            _log.info("the store %s, %s: %s", what, self._store.backend.description, answer)
