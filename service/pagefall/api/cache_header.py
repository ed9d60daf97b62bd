"""`x-pagefall-explain: 1` asks for `x-pagefall-cache`: where the prompt's tokens came from, on the answer itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from pagefall.errors import RequestError
from pagefall.messages import MissReason, PrefixReport, TokenSource

_QUESTION: Final = "x-pagefall-explain"
ANSWER: Final = "x-pagefall-cache"

_SOURCES: Final[tuple[TokenSource, ...]] = ("device", "host", "storage", "computed")


def wants_cache_header(scope: Scope) -> bool:
    """Raises `RequestError` for a value that is neither yes nor no."""
    value = Headers(scope=scope).get(_QUESTION, "0").strip().lower()
    if value in ("1", "true"):
        return True
    if value in ("0", "false", ""):
        return False
    raise RequestError(
        f"Invalid value for the header '{_QUESTION}': {value[:100]!r}. Send 1 to have '{ANSWER}' on the answer.",
        param=_QUESTION,
        code="invalid_value",
    )


def cache_header(reports: Sequence[PrefixReport]) -> str:
    """`device=512, host=0, storage=0, computed=88, miss=diverged@512`: tokens of all prompts, and the first page that
    was not cached, of the first prompt that has one, with its first token. `unreached` is there where it is not 0.
    """
    totals = {source: sum(report.num_tokens_by_source.get(source, 0) for report in reports) for source in _SOURCES}
    parts = [f"{source}={count}" for source, count in totals.items()]
    if unreached := sum(report.num_tokens_by_source.get("unreached", 0) for report in reports):
        parts.append(f"unreached={unreached}")
    for report in reports:
        if report.misses:
            miss = report.misses[0]
            parts.append(f"miss={_told_to_clients(miss.reason)}@{miss.first_page * report.page_size}")
            break
    return ", ".join(parts)


def _told_to_clients(reason: MissReason) -> MissReason:
    """What another tenant has cached is not for a client to know."""
    return "never_seen" if reason == "other_salt" else reason
