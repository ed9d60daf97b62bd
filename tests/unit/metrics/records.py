"""Records of requests, as the traffic log would have them."""

from __future__ import annotations

import numpy as np

from pagefall.insight.records import RequestRecord
from pagefall.messages import FinishReason, PrefixReport, RequestId, TokenSource


def report(*, known: int | None = None, queue_seconds: float = 0.0, **num_tokens_by_source: int) -> PrefixReport:
    """`known` None: what was cached."""
    sources: dict[TokenSource, int] = {
        "device": num_tokens_by_source.pop("device", 0),
        "host": num_tokens_by_source.pop("host", 0),
        "storage": num_tokens_by_source.pop("storage", 0),
        "computed": num_tokens_by_source.pop("computed", 0),
        "unreached": num_tokens_by_source.pop("unreached", 0),
    }
    assert not num_tokens_by_source
    return PrefixReport(
        page_size=4,
        num_prompt_tokens=sum(sources.values()),
        num_tokens_by_source=sources,
        num_known_tokens=sources["device"] + sources["host"] + sources["storage"] if known is None else known,
        misses=(),
        queue_seconds=queue_seconds,
    )


def record(
    prefix: PrefixReport | None = None,
    *,
    began_at: float = 0.0,
    first_token_at: float | None = None,
    ended_at: float | None = None,
    finish_reason: FinishReason | None = None,
) -> RequestRecord:
    return RequestRecord(
        request_id=RequestId("a"),
        prompt=None,
        token_ids=np.zeros(0 if prefix is None else prefix.num_prompt_tokens, dtype=np.uint32),
        cache_salt="",
        max_tokens=10,
        arrived_at=1e9,
        began_at=began_at,
        report=prefix,
        first_token_at=first_token_at,
        ended_at=ended_at,
        finish_reason=finish_reason,
    )
