"""The situations in which a server is timed. A scenario runs against one server, once; repeats are its caller's."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import msgspec

from pagefall.bench.client import CompletionClient, Trace
from pagefall.bench.prompts import Prompt
from pagefall.bench.report import Row

T = TypeVar("T")

Samples = tuple[float, ...]


class Scenario(msgspec.Struct, frozen=True):
    """`run` gives the samples for each of `rows`, in the row's unit; none where it could not measure."""

    rows: tuple[Row, ...]
    run: Callable[[CompletionClient], Awaitable[tuple[Samples, ...]]]


def ttft(num_tokens: int) -> Scenario:
    """Time to the first token of a prompt never seen, then of the same prompt once more."""

    async def run(client: CompletionClient) -> tuple[Samples, ...]:
        prompt = client.prompts.make(num_tokens)
        traces = [await client.stream(prompt, max_tokens=1) for _ in ("cold", "warm")]
        return tuple((_ms(trace.ttft_seconds),) for trace in traces)

    return Scenario(
        (Row(f"cold TTFT, {num_tokens:,} tokens", "ms"), Row(f"warm TTFT, {num_tokens:,} tokens", "ms")), run
    )


def inter_token_latency(input_tokens: int, output_tokens: int) -> Scenario:
    """Gaps between the events of one stream that has the server to itself. Every gap is a sample."""

    async def run(client: CompletionClient) -> tuple[Samples, ...]:
        trace = await client.stream(client.prompts.make(input_tokens), max_tokens=output_tokens)
        gaps = tuple(map(_ms, trace.gaps_seconds))
        return gaps, gaps

    return Scenario((Row("ITL alone, median", "ms"), Row("ITL alone, p99", "ms", "p99")), run)


def throughput(concurrency: int, input_tokens: int, output_tokens: int) -> Scenario:
    """Output tokens a second, from the first request's start to the last one's end, all sent at once."""

    async def run(client: CompletionClient) -> tuple[Samples, ...]:
        async def one() -> Trace:
            return await client.stream(client.prompts.make(input_tokens), max_tokens=output_tokens)

        traces = await together(*[one] * concurrency)
        seconds = max(t.arrivals[-1] for t in traces) - min(t.sent_at for t in traces)
        return ((sum(t.num_output_tokens for t in traces) / seconds,),)

    return Scenario((Row(f"output, {concurrency} x {input_tokens} in {output_tokens} out", "tok/s"),), run)


def interference(long_tokens: int, input_tokens: int) -> Scenario:
    """A stream runs while a long prompt is read: the worst gap in the stream, and the long prompt's own TTFT."""

    async def run(client: CompletionClient) -> tuple[Samples, ...]:
        running, read = await beside_a_stream(client, client.prompts.make(long_tokens), input_tokens=input_tokens)
        return worst_gap(running, read), (_ms(read.ttft_seconds),)

    return Scenario(
        (
            Row(f"worst gap beside {long_tokens:,} tokens", "ms"),
            Row(f"TTFT of the {long_tokens:,} tokens", "ms"),
        ),
        run,
    )


async def beside_a_stream(
    client: CompletionClient, prompt: Prompt, *, input_tokens: int, head_start: int = 8
) -> tuple[Trace, Trace]:
    """`prompt` is read while another answer is written: the traces of the stream and of the read.

    The stream, over a new prompt of `input_tokens`, has made `head_start` tokens when `prompt` is sent, and hangs up
    after its first token.
    """
    longest_stream = 1024
    stream_runs, prompt_is_read = anyio.Event(), anyio.Event()

    def keep_going(num_arrivals: int) -> bool:
        if num_arrivals >= head_start:
            stream_runs.set()
        return not prompt_is_read.is_set()

    async def stream() -> Trace:
        try:
            return await client.stream(
                client.prompts.make(input_tokens), max_tokens=longest_stream, keep_going=keep_going
            )
        finally:
            stream_runs.set()  # a stream that ends or fails early must not leave the other waiting

    async def read() -> Trace:
        await stream_runs.wait()
        try:
            return await client.stream(prompt, max_tokens=1)
        finally:
            prompt_is_read.set()

    running, reading = await together(stream, read)
    return running, reading


def worst_gap(running: Trace, read: Trace) -> Samples:
    """The longest pause of `running`, in ms, that touches the time from `read`'s sending to its first token.

    No sample when `running` ended before that: it was over too soon, or the server serves one request at a time.
    """
    gaps = gaps_beside(running, read)
    return (max(gaps),) if gaps else ()


def gaps_beside(running: Trace, read: Trace) -> Samples:
    """The pauses of `running`, in ms, that touch that time; none when `running` ended before it did."""
    first_token_at = read.arrivals[0]
    if running.arrivals[-1] < first_token_at:
        return ()
    pairs = itertools.pairwise(running.arrivals)
    return tuple(_ms(after - before) for before, after in pairs if after > read.sent_at and before < first_token_at)


def gaps_before(running: Trace, read: Trace) -> Samples:
    """The pauses of `running`, in ms, that were over when `read` was sent."""
    pairs = itertools.pairwise(running.arrivals)
    return tuple(_ms(after - before) for before, after in pairs if after <= read.sent_at)


async def together(*calls: Callable[[], Awaitable[T]]) -> list[T]:
    """The results of all `calls`, run at once. One failure cancels the others and is raised as it is."""
    results: dict[int, T] = {}

    async def keep(index: int, call: Callable[[], Awaitable[T]]) -> None:
        results[index] = await call()

    try:
        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                group.start_soon(keep, index, call)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [results[index] for index in range(len(calls))]


def _ms(seconds: float) -> float:
    return seconds * 1000
