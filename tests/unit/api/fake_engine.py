"""An engine that answers from a script, one token a character, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

import anyio
import httpx
import numpy as np
import openai
import uvicorn
from tests.byte_tokenizer import byte_tokenizer

from pagefall.actors.kv_log import KvEventLog
from pagefall.api.app import create_app
from pagefall.config import HttpConfig, InsightConfig
from pagefall.errors import RequestError
from pagefall.insight.explanation import Explanation, explain
from pagefall.insight.records import RequestRecord
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import (
    BranchFacts,
    CacheDescribed,
    CacheFlushed,
    ControllerStats,
    FinishReason,
    KeysSnapshot,
    PoolStats,
    PrefixReport,
    RequestId,
    SchedulerStats,
    Tier,
    TokenIds,
)
from pagefall.metrics.registry import Metrics
from pagefall.metrics.traffic import TrafficMetrics
from pagefall.text.requests import (
    CandidateToken,
    ChatPrompt,
    GenerateRequest,
    ModelCard,
    Prompt,
    TextDelta,
    TextLogprob,
    TextPrompt,
    TokenPrompt,
    Usage,
    resolve_max_tokens,
)

MODEL = "fake/model"
WORDS = ("Hello", " there", ", ", "안녕", " 👋", "")
"""One delta each; the last has a token and no text, like an end-of-sequence token."""


class FakeGeneration:
    def __init__(self, engine: FakeEngine, request: GenerateRequest, usage: Usage, deltas: Iterable[TextDelta]) -> None:
        self._engine = engine
        self._request = request
        self._usage = usage
        self._deltas = iter(deltas)
        self._finished = False

    def __aiter__(self) -> FakeGeneration:
        return self

    async def __anext__(self) -> TextDelta:
        if self._finished:
            raise StopAsyncIteration
        await self._engine.before_delta(self._request.request_id)
        delta = next(self._deltas)
        self._finished = delta.finish_reason is not None
        return delta

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        if not self._finished:
            self._engine.aborted.append(self._request.request_id)
        self._engine.closed.append(self._request.request_id)


class FakeEngine:
    def __init__(self, *, context_length: int = 1000, words: Sequence[str] = WORDS) -> None:
        self.ready = True
        self.model = ModelCard(id=MODEL, context_length=context_length, vocab_size=500, created=1_700_000_000)
        self.words = words
        self.refusal: Exception | None = None
        """Raised by `generate`, once `num_accepted_first` requests are through."""
        self.num_accepted_first = 0
        self.fault: Exception | None = None
        """Raised instead of the third delta."""
        self.endless = False
        self.accepts_together = 1
        """`generate` returns to nobody before it was called so often."""
        self.finish_reason: FinishReason = "stop"
        self.stop_string: str | None = None
        """What answers that are not cut off end with."""
        self.prompt_tail = ""
        self.num_pinned_tokens = 0
        self.storage_error: str | None = None
        self.tiers: ControllerStats | None = None
        """What is known of the lower tiers; None: there are none."""
        self.tiers_after: ControllerStats | None = None
        """The same, once the store was changed."""
        self.changes: list[tuple[str, Mapping[str, Any]] | None] = []
        """Stores that were attached; None where one was detached."""
        self.traffic = TrafficLog(InsightConfig())
        self.reports: list[PrefixReport] = []
        """Of the prompts to come, in their order; without one a prompt has no account."""
        self.kv_log = KvEventLog(namespace=b"\1" * 32, page_size=16)
        self.branches: tuple[BranchFacts, ...] = ()
        self.requests: list[GenerateRequest] = []
        self.num_deltas = 0
        self.withdrawn = 0
        self.aborted: list[RequestId] = []
        self.closed: list[RequestId] = []

    async def generate(self, request: GenerateRequest) -> FakeGeneration:
        self.requests.append(request)
        report = self.reports.pop(0) if self.reports else None
        num_prompt_tokens = len(await self.tokenize(request.prompt))
        max_tokens = resolve_max_tokens(
            max_tokens=request.max_tokens,
            num_prompt_tokens=num_prompt_tokens,
            context_length=self.model.context_length,
            param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
        )
        if self.refusal is not None and len(self.requests) > self.num_accepted_first:
            raise self.refusal
        try:
            while len(self.requests) < self.accepts_together:
                await anyio.sleep(0)
        except anyio.get_cancelled_exc_class():
            self.withdrawn += 1
            raise
        words = list(self.words[:max_tokens])
        usage = Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=len(words),
            cached_tokens=3,
            cached_tokens_by_tier={"device": 2, "host": 1},
        )
        finish_reason: FinishReason = self.finish_reason if len(words) == len(self.words) else "length"
        if request.echo:
            assert isinstance(request.prompt, TextPrompt)
            words = [request.prompt.text + words[0], *words[1:]] if words else [request.prompt.text]
        deltas = [
            TextDelta(
                text=word,
                token_ids=(len(word),),
                logprobs=() if request.sampling.num_top_logprobs is None else (self._logprob(word, request),),
                finish_reason=finish_reason if i == len(words) - 1 and not self.endless else None,
                usage=usage if i == len(words) - 1 and not self.endless else None,
                prefix=report if i == 0 else None,
                prompt_tail=self.prompt_tail if i == 0 else "",
                num_pinned_tokens=self.num_pinned_tokens if i == 0 else 0,
                stop_string=self.stop_string if i == len(words) - 1 else None,
            )
            for i, word in enumerate(words)
        ]
        return FakeGeneration(self, request, usage, cycle(deltas) if self.endless else deltas)

    def _logprob(self, word: str, request: GenerateRequest) -> TextLogprob:
        text = word or "</s>"
        top = [CandidateToken(n, f"top{n}", f"top{n}".encode(), -float(n)) for n in range(1, 21)]
        return TextLogprob(
            CandidateToken(len(word), text, text.encode(), float("-inf") if word == " 👋" else -0.5),
            tuple(top[: request.sampling.num_top_logprobs]),
            special=not word,
        )

    async def before_delta(self, request_id: RequestId) -> None:
        await anyio.sleep(0.001 if self.endless else 0)
        self.num_deltas += 1
        if self.fault is not None and self.num_deltas == 3:
            raise self.fault

    async def tokenize(self, prompt: Prompt) -> TokenIds:
        match prompt:
            case TextPrompt(text):
                return np.array([ord(character) % 500 for character in text], dtype=np.uint32)
            case TokenPrompt(token_ids):
                return np.array(token_ids, dtype=np.uint32)
            case ChatPrompt(messages=messages):
                if messages[-1].content == "refuse":
                    raise RequestError("The template refused.", param="messages")
                return np.array([len(message.content) % 500 for message in messages], dtype=np.uint32)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token_id) for token_id in token_ids)

    async def flush_cache(self, tiers: Set[Tier] = frozenset({"device", "host"})) -> CacheFlushed:
        counts: dict[Tier, int] = {"device": 7, "host": 5, "storage": 3}
        return CacheFlushed(
            flush_id=0,
            num_pages={tier: count for tier, count in counts.items() if tier in tiers},
            storage_error=self.storage_error if "storage" in tiers else None,
        )

    async def attach_storage(self, backend: str, extra_config: Mapping[str, Any]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self._change((backend, extra_config))

    async def detach_storage(self) -> None:
        self._change(None)

    def _change(self, change: tuple[str, Mapping[str, Any]] | None) -> None:
        self.changes.append(change)
        self.tiers = self.tiers_after or self.tiers

    async def describe_cache(self, *, max_branches: int) -> CacheDescribed:
        return CacheDescribed(query_id=0, branches=self.branches[:max_branches], num_nodes=9, is_complete=True)

    async def explain(self, record: RequestRecord) -> Explanation:
        return explain(record, byte_tokenizer(), model=MODEL, redact=self.traffic.config.redact_prompts)

    async def snapshot_keys(self) -> KeysSnapshot:
        number = self.kv_log.number
        return KeysSnapshot(query_id=0, number=number, device=b"d" * 16, host=b"h" * 8, storage=b"")

    def controller_stats(self) -> ControllerStats | None:
        return self.tiers

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=2,
            num_queued=5,
            device_pages=PoolStats(total=10, free=3, leased=1, cached=6, pinned=2),
            num_generated_tokens=99,
        )


def metrics_of(engine: FakeEngine) -> Metrics:
    traffic = TrafficMetrics(InsightConfig())
    return Metrics(engine.stats, engine.controller_stats, traffic, model=MODEL, page_size=16)


def http_client(engine: FakeEngine, config: HttpConfig | None = None) -> httpx.AsyncClient:
    """Speaks to the application without a socket; answers arrive whole."""
    transport = httpx.ASGITransport(create_app(engine, config or HttpConfig(), metrics=metrics_of(engine)))
    return httpx.AsyncClient(transport=transport, base_url="http://server")


@asynccontextmanager
async def listening(engine: FakeEngine, config: HttpConfig | None = None) -> AsyncIterator[tuple[str, int]]:
    """The address of a real server on a free port."""
    server = uvicorn.Server(
        uvicorn.Config(create_app(engine, config or HttpConfig()), host="127.0.0.1", port=0, access_log=False)
    )
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve)
        while not server.started:
            await anyio.sleep(0.005)
        port: int = server.servers[0].sockets[0].getsockname()[1]
        yield "127.0.0.1", port
        server.should_exit = True


def open_ai(host: str, port: int) -> openai.AsyncOpenAI:
    """OpenAI's own client of that server."""
    return openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0)
