"""What every actor is: a task that owns its state alone and hears of the world through its mailbox."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Generic

from pagefall.actors.mailbox import M, Mailbox

_log = logging.getLogger("pagefall.actors")


class ActorCrash(Exception):  # noqa: N818 - says what happened, as its cause is the error
    """A bug: an actor ended with an exception, its `__cause__`. The message is one line for the log's end."""


class Actor(ABC, Generic[M]):
    """Subclasses handle messages in `_run`, until the mailbox is closed and what was inside is done."""

    def __init__(self, mailbox: Mailbox[M]) -> None:
        """Everyone else knows at most the mailbox's address."""
        self._mailbox = mailbox

    def close(self) -> None:
        """Accept no more messages; `run` ends when everything accepted is done."""
        self._mailbox.close()

    async def run(self) -> None:
        """The actor's life. Raises `ActorCrash` for any exception inside; senders that wait are woken either way."""
        name = type(self).__name__
        try:
            await self._run()
        except Exception as error:
            _log.exception("%s crashed", name)
            raise ActorCrash(f"{name} crashed: {type(error).__name__}: {error}") from error
        finally:
            self.close()

    @abstractmethod
    async def _run(self) -> None: ...
