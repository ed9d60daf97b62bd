"""The traffic log: the requests that live, and the last ones that ended, in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from pagefall.config import InsightConfig
from pagefall.insight.records import AbortReason, RefusalReason, RequestRecord, TrafficObserver
from pagefall.messages import RequestId, RequestOutput, TokenIds
from pagefall.text.requests import ChatPrompt, GenerateRequest, TextPrompt


class TrafficLog:
    """Owned by the tokenizer, which tells it what happens. Others read, on the same loop."""

    def __init__(
        self,
        config: InsightConfig,
        *,
        observers: Sequence[TrafficObserver] = (),
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """Ended requests are kept while they are no more than `explain_max_requests` with `explain_max_tokens`."""
        self._config = config
        self._observers = tuple(observers)
        self._clock = clock
        self._unix_clock = unix_clock
        self._live: dict[RequestId, RequestRecord] = {}
        self._ended: OrderedDict[RequestId, RequestRecord] = OrderedDict()
        self._num_ended_tokens = 0
        self._by_http_id: dict[str, dict[RequestId, RequestRecord]] = {}

    @property
    def config(self) -> InsightConfig:
        return self._config

    def now(self) -> float:
        """Seconds of the clock that the records' times are of."""
        return self._clock()

    def get(self, request_id: RequestId) -> RequestRecord | None:
        """The record of a request that lives, or ended and is still remembered."""
        return self._live.get(request_id) or self._ended.get(request_id)

    def of_http_request(self, http_request_id: str) -> tuple[RequestRecord, ...]:
        """The records of all prompts that came with this `x-request-id`, in the order of their arrival."""
        return tuple(self._by_http_id.get(http_request_id, {}).values())

    def live(self) -> Iterator[RequestRecord]:
        """In the order of their arrival."""
        return iter(self._live.values())

    def ended(self) -> Iterator[RequestRecord]:
        """In the order of their ends, the oldest first."""
        return iter(self._ended.values())

    def refuse(self, reason: RefusalReason) -> None:
        for observer in self._observers:
            observer.refused(reason)

    def begin(self, request: GenerateRequest, token_ids: TokenIds, *, max_tokens: int, began_at: float) -> None:
        """A request goes to the scheduler. `began_at`: when it arrived, before its prompt was encoded."""
        prompt = request.prompt if isinstance(request.prompt, ChatPrompt | TextPrompt) else None
        record = RequestRecord(
            request_id=request.request_id,
            prompt=prompt,
            token_ids=token_ids,
            cache_salt=request.cache_salt,
            max_tokens=max_tokens,
            arrived_at=self._unix_clock() - (self._clock() - began_at),
            began_at=began_at,
            http_request_id=request.http_request_id,
        )
        self._live[record.request_id] = record
        if record.http_request_id is not None:
            self._by_http_id.setdefault(record.http_request_id, {})[record.request_id] = record

    def accept(self, request_id: RequestId) -> None:
        """The scheduler has queued it."""
        record = self._live[request_id]
        for observer in self._observers:
            observer.accepted(record)

    def reject(self, request_id: RequestId, reason: RefusalReason) -> None:
        """The scheduler has turned it away."""
        self._forget_http_id(self._live.pop(request_id))
        self.refuse(reason)

    def note_abort(self, request_id: RequestId, reason: AbortReason) -> None:
        """It will end soon, and this is why; the first reason stands."""
        record = self._live.get(request_id)
        if record is not None and record.abort_reason is None:
            record.abort_reason = reason

    def push(self, output: RequestOutput) -> None:
        """What a step made of one request."""
        record = self._live[output.request_id]
        if output.prefix is not None:
            record.report = output.prefix
            for observer in self._observers:
                observer.settled(record)
        num_tokens = len(output.token_ids)
        if num_tokens:
            now = self._clock()
            gap = None if record.last_token_at is None else now - record.last_token_at
            if record.first_token_at is None:
                record.first_token_at = now
            record.last_token_at = now
            record.num_generated_tokens += num_tokens
            for observer in self._observers:
                observer.progressed(record, num_tokens, gap)
        if output.finish_reason is not None:
            self._end(record, output)

    def _end(self, record: RequestRecord, output: RequestOutput) -> None:
        record.ended_at = self._clock()
        record.finish_reason = output.finish_reason
        if record.finish_reason != "abort":
            record.abort_reason = None
        del self._live[record.request_id]
        self._ended[record.request_id] = record
        self._num_ended_tokens += record.num_prompt_tokens
        while self._ended and (
            len(self._ended) > self._config.explain_max_requests
            or self._num_ended_tokens > self._config.explain_max_tokens
        ):
            _, oldest = self._ended.popitem(last=False)
            self._num_ended_tokens -= oldest.num_prompt_tokens
            self._forget_http_id(oldest)
        for observer in self._observers:
            observer.ended(record)

    def _forget_http_id(self, record: RequestRecord) -> None:
        if record.http_request_id is not None:
            records = self._by_http_id.get(record.http_request_id, {})
            records.pop(record.request_id, None)
            if not records:
                self._by_http_id.pop(record.http_request_id, None)
