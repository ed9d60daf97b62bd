"""An answer on its way to its one consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pagefall.actors.answer import Answer
from pagefall.errors import RequestError
from pagefall.messages import RequestOutput
from pagefall.text.requests import TextDelta


class TextGeneration:
    """Implements `api.engine.Generation`. The tokenizer pushes, the consumer iterates, neither waits for the other."""

    def __init__(self, answer: Answer, give_up: Callable[[], None]) -> None:
        """`give_up` is called when the consumer leaves before the answer is complete."""
        self._answer = answer
        self._give_up = give_up
        self._failure: RequestError | None = None
        self._closed = False
        self._has_news = asyncio.Event()

    @property
    def answer(self) -> Answer:
        return self._answer

    @property
    def is_complete(self) -> bool:
        return self._answer.finish_reason is not None

    def push(self, output: RequestOutput) -> None:
        self._answer.push(output)
        self._has_news.set()

    def fail(self, error: RequestError) -> None:
        """No more will come: the consumer gets what is there, then `error`."""
        self._failure = error
        self._has_news.set()

    def __aiter__(self) -> TextGeneration:
        return self

    async def __anext__(self) -> TextDelta:
        while not self._closed:
            if self._answer.is_echoing:
                await asyncio.sleep(0)  # others get their turn between the pieces
            if (delta := self._answer.take()) is not None:
                return delta
            if self.is_complete:
                break
            if self._failure is not None:
                raise self._failure
            self._has_news.clear()
            await self._has_news.wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Gives the request up unless its answer is complete. May be called again."""
        if not self._closed and not self.is_complete:
            self._give_up()
        self._closed = True
        self._has_news.set()
