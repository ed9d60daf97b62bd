"""The tokenizer: the engine as the HTTP layer sees it. Text in, token ids to the scheduler; token ids back, text out.

The front door keeps every queue behind it bounded: no more requests are let in than may run and wait. Each is
outstanding until the scheduler's last word about it, even when its client has left long before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, TypeVar, assert_never

from pagefall.actors.answer import Answer, prompt_tail
from pagefall.actors.base import Actor
from pagefall.actors.compiling import ConstraintCompiler
from pagefall.actors.encoding import PromptEncoder
from pagefall.actors.generation import TextGeneration
from pagefall.actors.kv_log import KvEventLog
from pagefall.actors.mailbox import Address, Mailbox, MailboxClosed
from pagefall.actors.questions import Questions
from pagefall.actors.refusals import change_under_way, refusal, storage_refusal, unavailable
from pagefall.errors import RequestError
from pagefall.insight.explanation import Explanation
from pagefall.insight.records import AbortReason, RequestRecord
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import (
    Accepted,
    AttachStorage,
    CacheDescribed,
    CacheFlushed,
    Cancel,
    ControllerStats,
    DescribeCache,
    DetachStorage,
    FlushCache,
    FromScheduler,
    KeysSnapshot,
    Rejected,
    RequestId,
    RequestOutput,
    SamplingParams,
    SchedulerStats,
    SnapshotKeys,
    StepOutput,
    StopParams,
    StorageChange,
    StorageChanged,
    Submit,
    Tier,
    TokenIds,
    ToScheduler,
)
from pagefall.text.answer_memory import EncodedPrompt, PromptKey
from pagefall.text.replies.formats import constraint_behind
from pagefall.text.requests import ChatPrompt, GenerateRequest, ModelCard, Prompt, resolve_max_tokens
from pagefall.text.tokenizer import Tokenizer

T = TypeVar("T")

_MAX_FLUSHES: Final = 16
_MAX_DESCRIPTIONS: Final = 4
_MAX_SNAPSHOTS: Final = 4


def scheduler_mailbox_capacity(max_outstanding: int) -> int:
    """Room for all that can ever be under way to the scheduler: a `Submit` and a `Cancel` of every outstanding
    request, flushes, questions about the tree, a change of the store. So a `Cancel` always arrives, and at once.
    """
    return 2 * max_outstanding + _MAX_FLUSHES + _MAX_DESCRIPTIONS + _MAX_SNAPSHOTS + 1


class _Outstanding:
    """A request that the scheduler knows, or is about to. `cancelled`: it was told that the request is over."""

    def __init__(self, submit: Submit, generation: TextGeneration, key: PromptKey | None) -> None:
        """`key`: what the answer is to be remembered by."""
        self.key = key
        self.sampling = submit.sampling
        self.num_tokens = len(submit.token_ids) + submit.stop.max_tokens
        self.generation = generation
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelled = False


class TokenizerActor(Actor[FromScheduler]):
    """Implements `api.engine.Engine`; see there for what its methods promise."""

    def __init__(
        self,
        mailbox: Mailbox[FromScheduler],
        scheduler: Address[ToScheduler],
        tokenizer: Tokenizer,
        encoder: PromptEncoder,
        compiler: ConstraintCompiler,
        *,
        model: ModelCard,
        eos_token_ids: frozenset[int],
        max_outstanding: int,
        stats: Callable[[], SchedulerStats],
        traffic: TrafficLog,
        kv_log: KvEventLog,
        controller_stats: Callable[[], ControllerStats] | None = None,
    ) -> None:
        """The scheduler's mailbox has `scheduler_mailbox_capacity(max_outstanding)`; `stats` reads its snapshot."""
        super().__init__(mailbox)
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._compiler = compiler
        self._model = model
        self._eos_token_ids = eos_token_ids
        self._max_outstanding = max_outstanding
        self._stats = stats
        self._traffic = traffic
        self._kv_log = kv_log
        self._controller_stats = controller_stats
        self._accepting = True
        self._num_encoding = 0
        self._outstanding: dict[RequestId, _Outstanding] = {}
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._flushes = Questions[CacheFlushed](limit=_MAX_FLUSHES, what="flushes")
        self._descriptions = Questions[CacheDescribed](limit=_MAX_DESCRIPTIONS, what="descriptions of the cache")
        self._snapshots = Questions[KeysSnapshot](limit=_MAX_SNAPSHOTS, what="snapshots of the cache")
        self._storage_change: asyncio.Future[StorageChanged] | None = None

    @property
    def ready(self) -> bool:
        return self._accepting

    @property
    def model(self) -> ModelCard:
        return self._model

    @property
    def traffic(self) -> TrafficLog:
        return self._traffic

    @property
    def kv_log(self) -> KvEventLog:
        return self._kv_log

    def stats(self) -> SchedulerStats:
        return self._stats()

    def controller_stats(self) -> ControllerStats | None:
        return None if self._controller_stats is None else self._controller_stats()

    async def generate(self, request: GenerateRequest) -> TextGeneration:
        began_at = self._traffic.now()
        self._refuse_if_full()
        self._num_encoding += 1
        try:
            prompt = await self._encoder.encode_with_history(request.prompt, request.cache_salt)
            pins = await self._encoder.pinned(request, prompt.token_ids)
            tail = prompt_tail(self._tokenizer, prompt.token_ids)
            constraint = constraint_behind(tail, request.constraint, self._model.replies)
            sampling = await self._compiler.constrain(request.sampling, constraint)
        except RequestError:
            self._traffic.refuse("bad_prompt")
            raise
        finally:
            self._num_encoding -= 1
        try:
            outstanding = self._submit(request, prompt, sampling, pins, began_at=began_at)
        except RequestError:
            self._compiler.release(sampling)
            raise
        try:
            await outstanding.accepted
        except asyncio.CancelledError:
            self._abort(request.request_id, "client_gone")
            raise
        return outstanding.generation

    async def tokenize(self, prompt: Prompt) -> TokenIds:
        return await self._encoder.encode(prompt)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await self._encoder.decode(token_ids)

    async def flush_cache(self, tiers: Set[Tier] = frozenset({"device", "host"})) -> CacheFlushed:
        wanted = frozenset(tiers)
        if "device" in wanted:
            self._encoder.forget_answers()  # they shape prompts, and whoever flushes wants these as if they were new
        return await self._flushes.ask(lambda number: self._send(FlushCache(flush_id=number, tiers=wanted)))

    async def describe_cache(self, *, max_branches: int) -> CacheDescribed:
        return await self._descriptions.ask(
            lambda number: self._send(DescribeCache(query_id=number, max_branches=max_branches))
        )

    async def snapshot_keys(self) -> KeysSnapshot:
        return await self._snapshots.ask(lambda number: self._send(SnapshotKeys(query_id=number)))

    async def explain(self, record: RequestRecord) -> Explanation:
        return await self._encoder.explain(record, model=self._model.id, redact=self._traffic.config.redact_prompts)

    async def attach_storage(self, backend: str, extra_config: Mapping[str, Any]) -> None:
        await self._change_storage(AttachStorage(backend=backend, extra_config=dict(extra_config)))

    async def detach_storage(self) -> None:
        await self._change_storage(DetachStorage())

    async def drain(self) -> None:
        """Refuses new requests and returns when every outstanding one has ended."""
        self.stop_accepting()
        await self._all_ended.wait()

    def stop_accepting(self) -> None:
        self._accepting = False
        self._kv_log.close()

    def abort_all(self) -> None:
        """Ends every outstanding request within a step; each consumer gets a last delta that says "abort"."""
        for request_id in list(self._outstanding):
            self._abort(request_id, "shutdown")

    @property
    def num_outstanding(self) -> int:
        return len(self._outstanding)

    async def _run(self) -> None:
        try:
            while not self._mailbox.is_exhausted:
                await self._mailbox.wait()
                for message in self._mailbox.take_all():
                    self._receive(message)
        finally:
            self._give_up_all()

    def _receive(self, message: FromScheduler) -> None:
        match message:
            case Accepted():
                self._traffic.accept(message.request_id)
                _settle(self._outstanding[message.request_id].accepted, None)
            case Rejected():
                outstanding = self._forget(message.request_id)
                self._traffic.reject(message.request_id, message.reason)
                _fail(outstanding.accepted, refusal(message, num_tokens=outstanding.num_tokens))
            case StepOutput():
                for output in message.outputs:
                    self._deliver(output)
            case CacheFlushed():
                self._flushes.settle(message.flush_id, message)
            case CacheDescribed():
                self._descriptions.settle(message.query_id, message)
            case KeysSnapshot():
                self._snapshots.settle(message.query_id, message)
            case StorageChanged():
                change, self._storage_change = self._storage_change, None
                if change is not None:
                    _settle(change, message)
            case _:
                assert_never(message)

    def _deliver(self, output: RequestOutput) -> None:
        generation = self._outstanding[output.request_id].generation
        self._traffic.push(output)
        generation.push(output)
        if generation.is_complete:
            self._remember(output.request_id)
        if output.finish_reason is not None:
            self._forget(output.request_id)
        elif generation.is_complete:
            self._cancel(output.request_id, "stop")  # a stop string: the scheduler cannot know

    def _remember(self, request_id: RequestId) -> None:
        """For the next turn, whose prompt may have the answer in it."""
        outstanding = self._outstanding[request_id]
        key, outstanding.key = outstanding.key, None
        answer = outstanding.generation.answer
        if key is not None and not answer.is_cut:
            self._encoder.remember(key, answer.all_token_ids)

    def _refuse_if_full(self) -> None:
        self._refuse_if_leaving()
        if self._num_encoding + len(self._outstanding) >= self._max_outstanding:
            self._traffic.refuse("queue_full")
            raise unavailable(f"The server is full: {self._max_outstanding} requests run or wait")

    def _refuse_if_leaving(self) -> None:
        if not self._accepting:
            self._traffic.refuse("shutting_down")
            raise unavailable("The server is shutting down")

    async def _change_storage(self, change: StorageChange) -> None:
        """The change goes on when whoever asked for it has left."""
        if self._controller_stats is None:
            raise RuntimeError("there are no tiers that could have a store")
        if not self._accepting:
            raise unavailable("The server is shutting down")
        if self._storage_change is not None:
            raise change_under_way()
        self._storage_change = asyncio.get_running_loop().create_future()
        self._send(change)
        changed = await self._storage_change
        if changed.error is not None:
            raise storage_refusal(changed)

    def _submit(
        self,
        request: GenerateRequest,
        prompt: EncodedPrompt,
        sampling: SamplingParams,
        pins: tuple[tuple[int, float], ...],
        *,
        began_at: float,
    ) -> _Outstanding:
        """Sends the request on. Raises `RequestError` if it is too long, or if the door was closed meanwhile."""
        token_ids = prompt.token_ids
        try:
            max_tokens = resolve_max_tokens(
                max_tokens=request.max_tokens,
                num_prompt_tokens=len(token_ids),
                context_length=self._model.context_length,
                param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
            )
        except RequestError:
            self._traffic.refuse("too_long" if len(token_ids) else "bad_prompt")
            raise
        stop_token_ids = request.stop_token_ids if request.ignore_eos else request.stop_token_ids | self._eos_token_ids
        submit = Submit(
            request_id=request.request_id,
            token_ids=token_ids,
            sampling=sampling,
            stop=StopParams(max_tokens=max_tokens, stop_token_ids=stop_token_ids),
            cache_salt=request.cache_salt,
            pins=pins,
            priority=request.priority,
            wants_prompt_logprobs=request.echo and sampling.num_top_logprobs is not None,
        )
        self._refuse_if_leaving()
        echoed = self._encoder.echo(request.prompt, token_ids) if request.echo else None
        answer = Answer(
            self._tokenizer,
            token_ids,
            request.stop,
            request.kept_special_token_ids,
            echoed=echoed,
            echoes_logprobs=submit.wants_prompt_logprobs,
            num_pinned_tokens=max((num_tokens for num_tokens, _ in pins), default=0),
        )
        outstanding = _Outstanding(
            submit,
            TextGeneration(answer, partial(self._abort, request.request_id, "client_gone")),
            prompt.key,
        )
        self._traffic.begin(request, token_ids, max_tokens=max_tokens, began_at=began_at)
        self._outstanding[request.request_id] = outstanding
        self._all_ended.clear()
        self._send(submit)
        return outstanding

    def _abort(self, request_id: RequestId, reason: AbortReason) -> None:
        self._traffic.note_abort(request_id, reason)
        self._cancel(request_id, "abort")

    def _cancel(self, request_id: RequestId, reason: Literal["stop", "abort"]) -> None:
        """Tells the scheduler, once, that the request is over. It stays outstanding until the scheduler agrees."""
        outstanding = self._outstanding.get(request_id)
        if outstanding is not None and not outstanding.cancelled:
            outstanding.cancelled = True
            with suppress(MailboxClosed):  # then the scheduler is gone, and the request with it
                self._send(Cancel(request_id=request_id, reason=reason))

    def _send(self, message: ToScheduler) -> None:
        if not self._scheduler.try_send(message):
            raise RuntimeError("the scheduler's mailbox is full, which its capacity rules out")

    def _forget(self, request_id: RequestId) -> _Outstanding:
        outstanding = self._outstanding.pop(request_id)
        self._compiler.release(outstanding.sampling)
        if not self._outstanding:
            self._all_ended.set()
        return outstanding

    def _give_up_all(self) -> None:
        """The scheduler will say nothing any more. After a drain nobody is left to hear it."""
        self.stop_accepting()
        gone = unavailable("The server stopped")
        for request_id in list(self._outstanding):
            outstanding = self._forget(request_id)
            _fail(outstanding.accepted, gone)
            outstanding.generation.fail(gone)
        self._flushes.fail(gone)
        self._descriptions.fail(gone)
        self._snapshots.fail(gone)
        if self._storage_change is not None:
            _fail(self._storage_change, gone)


def _settle(future: asyncio.Future[T], value: T) -> None:
    """Whoever waited may have been cancelled."""
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: RequestError) -> None:
    if not future.done():
        future.set_exception(error)
