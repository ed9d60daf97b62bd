"""A bounded queue with many senders and one reader.

Waiting and taking are two calls, so a reader that is cancelled while it waits loses no message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

M = TypeVar("M")


class MailboxClosed(Exception):  # noqa: N818 - an outcome more than an error: the reader takes no more messages
    """The message was not delivered."""


class Mailbox(Generic[M]):
    """The reader's side. Everyone else holds its `address`. All of it belongs to one event loop."""

    def __init__(self, capacity: int) -> None:
        self.address = Address(self)
        self._capacity = capacity
        self._messages: deque[M] = deque()
        self._closed = False
        self._has_news = asyncio.Event()  # set while there is a message, or none will come any more
        self._has_room = asyncio.Event()  # set while a message fits, or none is taken any more
        self._has_room.set()
        self._is_empty = asyncio.Event()  # set while nothing is inside, or none is taken any more
        self._is_empty.set()

    @property
    def is_exhausted(self) -> bool:
        """Closed, and every message taken."""
        return self._closed and not self._messages

    def address_leaving(self, num_places: int) -> Address[M]:
        """An address whose messages leave `num_places` of the capacity free, for those who must never wait."""
        return Address(self, num_places)

    async def wait(self) -> None:
        """Returns when there are messages to take, or there never will be."""
        await self._has_news.wait()

    def take_all(self) -> list[M]:
        """All messages that are here, oldest first; never waits."""
        messages = list(self._messages)
        self._messages.clear()
        self._update()
        return messages

    def close(self) -> None:
        """No more messages are accepted; those inside can still be taken. May be called again."""
        self._closed = True
        self._update()

    def put(self, message: M, *, leaving: int = 0) -> bool:
        """Adds the message; False if it is full but for `leaving` places. Raises `MailboxClosed`."""
        if self._closed:
            raise MailboxClosed
        if len(self._messages) >= self._capacity - leaving:
            return False
        self._messages.append(message)
        self._update()
        return True

    async def wait_for_room(self, *, leaving: int = 0) -> None:
        """Returns when a message fits, or may: whoever leaves places free waits until everything was taken."""
        await (self._is_empty if leaving else self._has_room).wait()

    def _update(self) -> None:
        _set(self._has_news, bool(self._messages) or self._closed)
        _set(self._has_room, len(self._messages) < self._capacity or self._closed)
        _set(self._is_empty, not self._messages or self._closed)


class Address(Generic[M]):
    """Where to send messages: a handle that shows nothing of the reader."""

    def __init__(self, mailbox: Mailbox[M], leaving: int = 0) -> None:
        self._mailbox = mailbox
        self._leaving = leaving

    def try_send(self, message: M) -> bool:
        """Delivers at once; False, and nothing is delivered, if the mailbox is full. Raises `MailboxClosed`."""
        return self._mailbox.put(message, leaving=self._leaving)

    async def send(self, message: M) -> None:
        """Delivers as soon as there is room. Cancelled, it has not delivered. Raises `MailboxClosed`.

        Does not yield to other tasks when there is room.
        """
        while not self._mailbox.put(message, leaving=self._leaving):
            await self._mailbox.wait_for_room(leaving=self._leaving)


def _set(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
