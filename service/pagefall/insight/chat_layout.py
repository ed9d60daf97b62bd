"""Which message of a chat, and which of its characters, stands where in the rendered prompt.

The template is rendered once more with a mark in place of each message's content. What stands between the marks is the
template's own text, the same in both; so the contents in the prompt are what is between these texts. Looking for the
contents themselves would not do: a message may repeat another, or a part of the template.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from pagefall.errors import RequestError
from pagefall.insight.prompt_text import PromptTokenizer, render
from pagefall.text.requests import ChatMessage, ChatPrompt

MessagePart = Literal["content", "template", "generation_prompt"]
"""`template`: the template's text that introduces the message. `generation_prompt`: its text after the last one."""

_MARK: Final = "PagefallMessage"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a rendered chat. `character` counts in the message's content as it was sent; None in other parts, and
    where the template has changed the content beyond recognition. `index` is None in the generation prompt.
    """

    part: MessagePart
    index: int | None
    character: int | None


class _Segment(msgspec.Struct, frozen=True):
    """A message's content, from `start` to `end` of the prompt; its first `num_cut` characters were cut off."""

    index: int
    start: int
    end: int
    num_cut: int | None


class ChatLayout:
    """The contents' places in one rendered prompt, in the order in which the template wrote them."""

    def __init__(self, segments: Sequence[_Segment]) -> None:
        """Made by `chat_layout`."""
        self._segments = segments

    def place(self, character: int) -> Place:
        """What stands at this character of the rendered prompt.

        The template's text belongs to the message it introduces: the next one after it. Its last text introduces the
        answer. A content's end is its own: what was different is that it ends there.
        """
        for segment in self._segments:
            if character < segment.start:
                return Place(part="template", index=segment.index, character=None)
            if character <= segment.end:
                return _inside(segment, character)
        return Place(part="generation_prompt", index=None, character=None)


def chat_layout(prompt: ChatPrompt, text: str, tokenizer: PromptTokenizer) -> ChatLayout:
    """`text` is the rendered prompt, or what its tokens decode to."""
    skeleton = _skeleton(prompt, text, tokenizer)
    segments = None if skeleton is None else _between(skeleton, prompt.messages, text)
    return ChatLayout(_in_order(prompt.messages, text) if segments is None else segments)


def _inside(segment: _Segment, character: int) -> Place:
    offset = None if segment.num_cut is None else segment.num_cut + character - segment.start
    return Place(part="content", index=segment.index, character=offset)


class _Skeleton(msgspec.Struct, frozen=True):
    """`texts` are the template's own; the content of message `indices[i]` stands between texts `i` and `i + 1`."""

    texts: Sequence[str]
    indices: Sequence[int]


def _skeleton(prompt: ChatPrompt, text: str, tokenizer: PromptTokenizer) -> _Skeleton | None:
    mark = _MARK
    while mark in text:
        mark += "x"
    marked = [replace(message, content=f"{mark}{index}end") for index, message in enumerate(prompt.messages)]
    try:
        rendered = render(prompt, marked, tokenizer)
    except RequestError:
        return None
    parts = re.split(rf"{mark}(\d+)end", rendered)
    return _Skeleton(parts[::2], [int(index) for index in parts[1::2]])


def _between(skeleton: _Skeleton, messages: Sequence[ChatMessage], text: str) -> list[_Segment] | None:
    """None where the template's own texts are not what they are with marks: it looks at the contents."""
    first, *texts = skeleton.texts
    if not text.startswith(first):
        return None
    segments: list[_Segment] = []
    start = len(first)
    for index, after in zip(skeleton.indices, texts, strict=True):
        ends_text = len(segments) == len(texts) - 1
        segment = _content(index, messages[index].content, text, start, after, ends_text=ends_text)
        if segment is None:
            return None
        segments.append(segment)
        start = segment.end + len(after)
    return segments if start == len(text) else None


def _content(index: int, content: str, text: str, start: int, after: str, *, ends_text: bool) -> _Segment | None:
    """The content that begins at `start` and is followed by the template's text `after`."""

    def fits(end: int) -> bool:
        return end + len(after) == len(text) if ends_text else True

    # A content may hold text like `after`, so the whole of it is tried before what a template may have cut off.
    for kept in dict.fromkeys((content, content.rstrip(), content.lstrip(), content.strip())):
        end = start + len(kept)
        if text.startswith(kept, start) and text.startswith(after, end) and fits(end):
            num_cut = len(content) - len(content.lstrip()) if not content.startswith(kept) else 0
            return _Segment(index, start, end, num_cut)
    end = len(text) - len(after) if ends_text else text.find(after, start)
    if end < start or not text.startswith(after, end):
        return None
    kept = text[start:end]
    # Templates leave out the reasoning at the head of an answer.
    found = content.rfind(kept)
    return _Segment(index, start, end, found if kept and found >= 0 else None)


def _in_order(messages: Sequence[ChatMessage], text: str) -> list[_Segment]:
    """Each content where it is found first after the one before it; one that is not found has no place."""
    segments: list[_Segment] = []
    start = 0
    for index, message in enumerate(messages):
        kept = message.content.strip()
        found = text.find(kept, start) if kept else -1
        if found >= 0:
            num_cut = len(message.content) - len(message.content.lstrip())
            start = found + len(kept)
            segments.append(_Segment(index, found, start, num_cut))
    return segments
