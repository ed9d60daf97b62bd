"""The output items of one response as the parts of the answer come, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

import msgspec

from pagefall.api import wire_response_events as wire
from pagefall.api.wire_response_events import ResponseEvent
from pagefall.api.wire_responses import (
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseLogprob,
    Status,
)
from pagefall.text.replies.parts import Content, Reasoning, ReplyPart, ToolCallArguments, ToolCallStart


class Output:
    """At most the last item is open. Log-probabilities are those of the text in messages."""

    def __init__(self, new_id: Callable[[str], str]) -> None:
        """`new_id` makes an id that begins as it is told."""
        self.done: list[OutputItem] = []
        self._new_id = new_id
        self._open: OutputItem | None = None
        self._text = ""
        self._logprobs: list[ResponseLogprob] = []
        self._waiting: list[ResponseLogprob] = []

    def note_logprobs(self, logprobs: Iterable[ResponseLogprob]) -> None:
        """Of tokens whose text comes with the next part, or later."""
        self._waiting.extend(logprobs)

    def push(self, part: ReplyPart) -> list[ResponseEvent]:
        match part:
            case Content(text):
                begun = self._begin_text()
                logprobs = self._take_logprobs()
                self._text += text
                return [
                    *begun,
                    wire.OutputTextDelta(
                        output_index=len(self.done), item_id=self._item_id, delta=text, logprobs=logprobs
                    ),
                ]
            case Reasoning(text):
                begun = self._begin_thought()
                self._waiting.clear()
                self._text += text
                return [
                    *begun,
                    wire.ReasoningDelta(output_index=len(self.done), item_id=self._item_id, delta=text),
                ]
            case ToolCallStart(call_id=call_id, name=name):
                self._waiting.clear()
                item = FunctionCallItem(
                    id=self._new_id("fc"), status="in_progress", call_id=call_id, name=name, arguments=""
                )
                return self._begin(item)
            case ToolCallArguments(text=text):
                self._waiting.clear()
                self._text += text
                return [wire.ArgumentsDelta(output_index=len(self.done), item_id=self._item_id, delta=text)]
            case _:
                assert_never(part)

    def finish(self, status: Status) -> list[ResponseEvent]:
        """Ends the item that is open as `status`; all before it are complete. Nothing said is an empty message."""
        begun = [] if self.done or self._open is not None else self._begin_text()
        return [*begun, *self._close(status)]

    @property
    def _item_id(self) -> str:
        assert self._open is not None
        return self._open.id

    def _take_logprobs(self) -> tuple[ResponseLogprob, ...]:
        taken = tuple(self._waiting)
        self._logprobs += taken
        self._waiting.clear()
        return taken

    def _begin_text(self) -> list[ResponseEvent]:
        if isinstance(self._open, MessageItem):
            return []
        begun = self._begin(MessageItem(id=self._new_id("msg"), status="in_progress", content=()))
        part = OutputText(text="")
        return [*begun, wire.PartAdded(output_index=len(self.done), item_id=self._item_id, part=part)]

    def _begin_thought(self) -> list[ResponseEvent]:
        if isinstance(self._open, ReasoningItem):
            return []
        begun = self._begin(ReasoningItem(id=self._new_id("rs"), status="in_progress", content=()))
        part = ReasoningText(text="")
        return [*begun, wire.PartAdded(output_index=len(self.done), item_id=self._item_id, part=part)]

    def _begin(self, item: OutputItem) -> list[ResponseEvent]:
        closed = self._close("completed")
        self._open = item
        return [*closed, wire.ItemAdded(output_index=len(self.done), item=item)]

    def _close(self, status: Status) -> list[ResponseEvent]:
        if self._open is None:
            return []
        index, item_id = len(self.done), self._item_id
        events: list[ResponseEvent]
        item: OutputItem
        match self._open:
            case MessageItem():
                text = OutputText(text=self._text, logprobs=tuple(self._logprobs))
                item = msgspec.structs.replace(self._open, status=status, content=(text,))
                events = [
                    wire.OutputTextDone(
                        output_index=index, item_id=item_id, text=self._text, logprobs=tuple(self._logprobs)
                    ),
                    wire.PartDone(output_index=index, item_id=item_id, part=text),
                ]
            case ReasoningItem():
                thought = ReasoningText(text=self._text)
                item = msgspec.structs.replace(self._open, status=status, content=(thought,))
                events = [
                    wire.ReasoningDone(output_index=index, item_id=item_id, text=self._text),
                    wire.PartDone(output_index=index, item_id=item_id, part=thought),
                ]
            case FunctionCallItem(name=name):
                item = msgspec.structs.replace(self._open, status=status, arguments=self._text)
                events = [wire.ArgumentsDone(output_index=index, item_id=item_id, name=name, arguments=self._text)]
            case _:
                assert_never(self._open)
        self.done.append(item)
        self._open, self._text, self._logprobs = None, "", []
        return [*events, wire.ItemDone(output_index=index, item=item)]
