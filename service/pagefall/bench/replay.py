"""A workload is sent to one server, a fixed number of requests at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from pagefall.bench.client import CompletionClient, Trace
from pagefall.bench.scenarios import together
from pagefall.bench.workloads import Round, WorkloadRequest
from pagefall.messages import Tier


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One answered request. Cached tokens are None where the server does not count them."""

    part: str
    num_prompt_tokens: int
    num_seen_tokens: int
    num_output_tokens: int
    ttft_seconds: float
    gaps_seconds: tuple[float, ...]
    cached_tokens: int | None
    cached_tokens_by_tier: dict[Tier, int] | None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All answers of one server, in the order in which they ended; `seconds` from the first sending to the last end."""

    seconds: float
    samples: tuple[Sample, ...]


async def replay(
    client: CompletionClient,
    rounds: Sequence[Round],
    *,
    output_tokens: int,
    parallel: int,
    on_answer: Callable[[], object] = lambda: None,
) -> Run:
    """Sends the rounds one after the other, and of each round `parallel` requests at a time, in order.

    Raises `PagefallError` when a request fails: a run with holes is no figure.
    """
    samples: list[Sample] = []

    async def work_through(requests: Iterator[WorkloadRequest]) -> None:
        for request in requests:
            trace = await client.stream(list(request.token_ids), max_tokens=output_tokens)
            samples.append(_sample(request, trace))
            on_answer()

    started = time.perf_counter()
    for requests in rounds:
        waiting = iter(requests)
        await together(*[lambda waiting=waiting: work_through(waiting)] * parallel)
    return Run(seconds=time.perf_counter() - started, samples=tuple(samples))


def _sample(request: WorkloadRequest, trace: Trace) -> Sample:
    return Sample(
        part=request.part,
        num_prompt_tokens=len(request.token_ids),
        num_seen_tokens=request.num_seen_tokens,
        num_output_tokens=trace.num_output_tokens,
        ttft_seconds=trace.ttft_seconds,
        gaps_seconds=trace.gaps_seconds,
        cached_tokens=trace.cached_tokens,
        cached_tokens_by_tier=trace.cached_tokens_by_tier,
    )
