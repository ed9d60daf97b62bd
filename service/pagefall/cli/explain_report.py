"""An explanation as a page of text, and requests as a table."""

from __future__ import annotations

import textwrap
import time
import unicodedata
from collections.abc import Iterator
from typing import Final

from pagefall.api.explanations import RequestsAnswer, RequestSummary
from pagefall.insight.difference import Snippet
from pagefall.insight.explanation import ExplainedDivergence, ExplainedMiss, Explanation, where
from pagefall.insight.sentences import duration

_WIDTH: Final = 100
_NAMES: Final = 10
"""Columns of the names at the left."""

_SHOWN: Final = {"\n": "↵", "\t": "→"}
_UNPRINTABLE: Final = "·"


def report(it: Explanation) -> str:
    """All of it; text of prompts on one line each, what is not printable as a sign."""
    lines = [f"{it.request_id}  {it.model}  {_ending(it)}  {_moment(it.time)}"]
    if it.http_request_id is not None:
        lines.append(_named("x-request", it.http_request_id))
    lines += ["", _named("prompt", _sources(it)), _named("times", _times(it))]
    if not it.is_settled:
        return "\n".join([*lines, "", "Where its prompt comes from is known with its first token.", ""])
    if it.num_known_tokens:
        lines.append(_named("known", f"{it.num_known_tokens:,} tokens, which an endless cache would have had"))
    if it.divergence is not None:
        lines += ["", *_divergence(it.divergence)]
    if it.misses:
        lines += ["", "Not cached:", *(line for miss in it.misses for line in _miss(miss))]
    return "\n".join([*lines, ""])


def table(it: RequestsAnswer) -> str:
    """A line a request, the newest first."""
    if not it.requests:
        return "no requests yet\n"
    rows = [["request", "time", "state", "prompt", "device", "host", "storage", "TTFT", "first miss"]]
    rows += [_row(each) for each in it.requests]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def _row(it: RequestSummary) -> list[str]:
    return [
        it.request_id,
        _moment(it.time),
        it.state,
        str(it.num_prompt_tokens),
        *(str(it.num_tokens_by_source.get(tier, 0)) if it.is_settled else "" for tier in ("device", "host", "storage")),
        "" if it.ttft_seconds is None else duration(it.ttft_seconds),
        it.first_miss or "",
    ]


def _named(name: str, text: str) -> str:
    return f"{name:{_NAMES}} {text}"


def _moment(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_seconds))


def _ending(it: Explanation) -> str:
    ending = it.abort_reason or it.finish_reason
    return it.state if ending is None else f"{it.state} ({ending})"


def _sources(it: Explanation) -> str:
    parts = [f"{count:,} {source}" for source, count in it.num_tokens_by_source.items() if count]
    return f"{it.num_prompt_tokens:,} tokens" + (f": {', '.join(parts)}" if parts else "")


def _times(it: Explanation) -> str:
    times = {
        "queue": it.queue_seconds,
        "TTFT": it.ttft_seconds,
        "total": it.total_seconds,
        "saved about": it.saved_seconds or None,
    }
    return ", ".join(f"{name} {duration(value)}" for name, value in times.items() if value is not None) or "none yet"


def _divergence(it: ExplainedDivergence) -> Iterator[str]:
    did = "It left the known path" if it.has_other else "The known path ended"
    yield from textwrap.wrap(f"{did} at token {it.token_index:,}{where(it)}.", _WIDTH)
    notes = []
    if it.other_request_id is not None:
        notes.append(f"The path is that of {it.other_request_id}.")
    if not it.is_cached:
        notes.append("It is only remembered: no tier has it any more.")
    if it.is_same_text:
        notes.append("The text goes on the same, but is cut into other tokens.")
    if it.is_decoded_text:
        notes.append("The text is made from the token ids.")
    yield from textwrap.wrap(" ".join(notes), _WIDTH)
    if it.snippet is not None:
        yield ""
        yield from _snippet(it.snippet)


def _snippet(it: Snippet) -> Iterator[str]:
    """Both texts under each other, and a caret below the first character that differs."""
    before = _printable(it.before)
    yield _named("  path", before + ("(ends here)" if it.other is None else _printable(it.other)))
    yield _named("  prompt", before + (_printable(it.prompt) or "(ends here)"))
    yield _named("", " " * _num_columns(before) + "^")


def _miss(it: ExplainedMiss) -> Iterator[str]:
    last = it.first_token + it.num_tokens - 1
    place = f"token {it.first_token:,}" if it.num_tokens == 1 else f"tokens {it.first_token:,} to {last:,}"
    yield f"  {place}: {it.reason}"
    for text in (it.explanation, it.advice):
        if text is not None:
            yield from textwrap.wrap(text, _WIDTH - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _printable(text: str) -> str:
    """A terminal must not obey what is in a prompt."""
    return "".join(_SHOWN.get(each, each if each.isprintable() else _UNPRINTABLE) for each in text)


def _num_columns(text: str) -> int:
    """Of a terminal: some characters take two, some none."""
    return sum(_columns_of(each) for each in text)


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
