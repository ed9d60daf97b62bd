"""The composition root: what there is, who knows whom, and in which order it starts and ends.

HTTP (api) --> TokenizerActor --> Scheduler --> ModelRunner (one thread: the model)
^                | ^
+----------------+ |
                   v
                 CacheController (copies, the store), where there are lower tiers
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from types import FrameType
from typing import Final, NamedTuple

import torch

from pagefall.actors.base import ActorCrash
from pagefall.actors.cache_controller import CacheController
from pagefall.actors.compiling import ConstraintCompiler
from pagefall.actors.encoding import PromptEncoder
from pagefall.actors.kv_log import KvEventLog
from pagefall.actors.mailbox import Mailbox
from pagefall.actors.runner import DeviceThread, Model, ModelRunner
from pagefall.actors.scheduler import Scheduler
from pagefall.actors.tokenizer import TokenizerActor, scheduler_mailbox_capacity
from pagefall.api.app import create_app
from pagefall.api.cache_stats import PoolFacts
from pagefall.api.server import HttpServer, bind
from pagefall.cache.namespace import Namespace
from pagefall.config import CacheConfig, HttpConfig, InsightConfig, SchedulerConfig, ServeConfig
from pagefall.insight.records import TrafficObserver
from pagefall.insight.request_log import request_log
from pagefall.insight.sampling import sampling
from pagefall.insight.series import TrafficSeries
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import FromScheduler, ToController, ToScheduler
from pagefall.metrics.registry import Metrics
from pagefall.metrics.traffic import TrafficMetrics
from pagefall.model.engine import ModelInfo, PagedModel, load
from pagefall.model.location import locate_tokenizer
from pagefall.model.memory import free_host_memory
from pagefall.model.prepare import prepare
from pagefall.model.spec import ModelSpec
from pagefall.namespaces import namespace_of
from pagefall.scheduling.state import SchedulerState
from pagefall.text.grammars import Grammars
from pagefall.text.matchers import VocabularyFacts
from pagefall.text.replies.formats import reply_format
from pagefall.text.requests import ModelCard
from pagefall.text.tokenizer import Tokenizer, load_tokenizer
from pagefall.tiers.assembly import LowerTiers, host_tier, lower_tiers, open_store
from pagefall.tiers.copier import PageCopier
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.notes import start_notes
from pagefall.tiers.sizing import refuse_impossible_size

_log = logging.getLogger("pagefall.app")

_TOKENIZER_MAILBOX_CAPACITY: Final = 1024
"""Messages of the scheduler that may wait for the tokenizer; beyond that the scheduler waits."""

_MAX_REPORTS: Final = 1024
"""Reports of transfers that may wait for the scheduler; beyond that the cache controller waits."""

_WRITING_GRACE_SECONDS: Final = 10.0
"""How long a server that ends goes on writing to its store."""

_LAST_TRANSFERS_SECONDS: Final = 1.0
"""How long it then waits for transfers that have not ended."""

_LEAVING_SECONDS: Final = 10.0
"""How long the process may take to end once everything in it has."""

_INTERRUPTED: Final = 130


def serve(config: ServeConfig) -> int:
    """Serves until a signal ends it, and returns the exit status: 0 after a drain, 1 after a crash.

    Raises `ConfigError` or `ModelError`, one line each, before the port is open.
    """
    _configure_logging(config.http)
    # A port that is taken is found before a minute of loading, not after.
    with bind(config.http) as bound, DeviceThread() as thread:
        try:
            asyncio.run(_serve_and_leave(config, bound, thread))
        except BaseExceptionGroup as failures:
            crash = _crash_in(failures)
            if crash is None:
                raise
            sys.stderr.write(f"pagefall: error: {crash}\n")
            return 1
    _log.info("stopped")
    return 0


@asynccontextmanager
async def running_engine(
    model: Model,
    tokenizer: Tokenizer,
    card: ModelCard,
    *,
    thread: DeviceThread,
    num_pages: int,
    eos_token_ids: frozenset[int],
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    tiers: LowerTiers | None = None,
    grammars: Grammars | None = None,
    insight: InsightConfig = InsightConfig(),  # noqa: B008 - frozen
    observers: Sequence[TrafficObserver] = (),
    grace_seconds: float = _WRITING_GRACE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[TokenizerActor]:
    """The engine without HTTP: an `api.engine.Engine`. Leaving it serves what was accepted to its end, and writes to
    `tiers` what waits to be written, for `grace_seconds` at most.

    The model was loaded in `thread`, which outlives the engine. The store in `tiers` is closed with the engine.
    `grammars` are the ones that the model was given; without them constrained requests are refused.

    Raises `ExceptionGroup` with an `ActorCrash` in it when an actor has failed; the body is cancelled then.
    """
    max_outstanding = scheduler.max_running_requests + scheduler.max_queued_requests
    capacity = scheduler_mailbox_capacity(max_outstanding)
    to_scheduler = Mailbox[ToScheduler](capacity + (0 if tiers is None else _MAX_REPORTS))
    to_tokenizer = Mailbox[FromScheduler](_TOKENIZER_MAILBOX_CAPACITY)
    state = SchedulerState(
        scheduler=scheduler,
        cache=cache,
        page_size=cache.page_size,
        num_pages=num_pages,
        namespace=_namespace_without_tiers(card, cache) if tiers is None else tiers.namespace,
        tiers=None if tiers is None else tiers.config,
        num_host_pages=0 if tiers is None else tiers.memory.num_pages,
        page_bytes=0 if tiers is None else tiers.memory.page_bytes,
        history_tokens=insight.explain_max_tokens if insight.explain_max_requests else 0,
    )
    controller = None
    if tiers is not None:
        # Every transfer holds a page of the host at least, or a request.
        to_controller = Mailbox[ToController](2 * (tiers.memory.num_pages + capacity))
        controller = CacheController(
            to_controller,
            to_scheduler.address_leaving(capacity),
            tiers.copier,
            tiers.memory,
            tiers.storage,
            clock=clock,
            grace_seconds=_LAST_TRANSFERS_SECONDS,
            clients=tiers.clients,
        )
    kv_log = KvEventLog(namespace=state.namespace, page_size=cache.page_size)
    with (
        PromptEncoder(
            tokenizer,
            max_waiting=max_outstanding,
            end_token_ids=eos_token_ids if _remembers_answers(cache) else frozenset(),
        ) as encoder,
        ConstraintCompiler(grammars) as compiler,
    ):
        runner = ModelRunner(model, thread)
        decider = Scheduler(
            to_scheduler,
            to_tokenizer.address,
            runner,
            state,
            clock=clock,
            controller=None if controller is None else to_controller.address,
            kv_log=kv_log,
        )
        engine = TokenizerActor(
            to_tokenizer,
            to_scheduler.address,
            tokenizer,
            encoder,
            compiler,
            model=card,
            eos_token_ids=eos_token_ids,
            max_outstanding=max_outstanding,
            stats=decider.stats,
            traffic=TrafficLog(insight, observers=observers, clock=clock),
            kv_log=kv_log,
            controller_stats=None if controller is None else controller.stats,
        )
        async with asyncio.TaskGroup() as actors:
            actors.create_task(engine.run(), name="tokenizer")
            deciding = actors.create_task(decider.run(), name="scheduler")
            if controller is not None:
                actors.create_task(controller.run(), name="cache controller")
            yield engine
            # From the head: no new requests, then what they leave to be written, then the scheduler's last words, then
            # whoever listens to them.
            await engine.drain()
            if controller is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace_seconds):
                        await decider.wait_until_quiet()
            decider.close()
            await deciding
            if controller is not None:
                controller.close()
            engine.close()


def _remembers_answers(cache: CacheConfig) -> bool:
    """It changes the tokens of prompts, so that they are cached; where nothing is cached it is good for nothing."""
    return not cache.disable_answer_memory and not cache.disable_radix_cache


def _namespace_without_tiers(card: ModelCard, cache: CacheConfig) -> bytes:
    """Where no page ever leaves the process: it tells a router which servers name the same prompts alike, no more."""
    return hashlib.sha256(f"no lower tiers, {cache.page_size}, {card.id}".encode()).digest()


async def _serve_and_leave(config: ServeConfig, bound: socket.socket, thread: DeviceThread) -> None:
    """Neither the loop nor the interpreter ends before a call that nothing ends: a disk that does not answer, a plug-in
    that cannot be cancelled. A server that has ended does not wait for it.
    """
    status = 1
    try:
        with request_log(config.insight) as logs:
            await _serve(config, bound, thread, logs)
        status = 0
    finally:
        timer = threading.Timer(_LEAVING_SECONDS, _leave, [status])
        timer.daemon = True
        timer.start()


async def _serve(
    config: ServeConfig, bound: socket.socket, thread: DeviceThread, logs: Sequence[TrafficObserver]
) -> None:
    spec = await thread.start(prepare, config.model)
    # What cannot be had is found before the weights are read.
    refuse_impossible_size(config.tiers, free_bytes=free_host_memory())
    page_bytes = config.cache.page_size * spec.kv_bytes_per_token(spec.dtype.itemsize)
    store = await open_store(config.tiers, page_bytes=page_bytes)
    loaded = await thread.start(_load, config, spec)
    model, tokenizer = loaded.model, loaded.tokenizer
    tiers = None
    if loaded.host is not None and loaded.namespace is not None:
        backend, is_answering = (None, True) if store is None else (store.backend, store.trouble is None)
        tiers = await lower_tiers(config.tiers, loaded.host, backend, loaded.namespace, is_answering=is_answering)
    info = model.info
    card = ModelCard(
        id=info.spec.served_name,
        context_length=info.context_length,
        vocab_size=info.spec.vocab_size,
        created=int(time.time()),
        root=config.model.model_path,
        replies=reply_format(
            config.model.tool_call_parser,
            config.model.reasoning_parser,
            chat_template=tokenizer.chat_template,
            special_token_id=tokenizer.special_token_id,
        ),
    )
    series = TrafficSeries(window_seconds=config.insight.metrics_window)
    counted = None if config.insight.disable_metrics else TrafficMetrics(config.insight)
    async with running_engine(
        model,
        tokenizer,
        card,
        thread=thread,
        num_pages=info.pool.num_pages,
        eos_token_ids=info.spec.eos_token_ids | tokenizer.eos_token_ids,
        cache=config.cache,
        scheduler=config.scheduler,
        tiers=tiers,
        grammars=loaded.grammars,
        insight=config.insight,
        observers=(series, *(() if counted is None else counted.observers), *logs),
    ) as engine:
        metrics = None
        if counted is not None:
            metrics = Metrics(engine.stats, engine.controller_stats, counted, model=card.id, page_size=info.page_size)
        facts = PoolFacts(
            page_size=info.page_size,
            device_bytes=info.pool.num_bytes,
            host_bytes=None if tiers is None else tiers.memory.num_bytes,
        )
        server = HttpServer(
            create_app(engine, config.http, metrics=metrics, insight=config.insight, series=series, facts=facts),
            config.http,
            bound,
            on_ready=lambda url: _log.info("ready\n%s", _start_report(info, tiers, url)),
        )

        def shut_down() -> None:
            _log.info("shutting down; requests under way: %d; once more to end at once", engine.num_outstanding)
            engine.stop_accepting()
            server.should_exit = True
            asyncio.get_running_loop().call_later(config.http.shutdown_grace_seconds, engine.abort_all)

        _on_signals(shut_down)
        lag_sampled = nullcontext() if counted is None else counted.loop_lag.sampled()
        async with sampling(series, engine.stats, engine.controller_stats), lag_sampled:
            await server.run_until_exit()


class _Loaded(NamedTuple):
    """`host` and `namespace` are None where there are no lower tiers, `grammars` where no token ends an answer."""

    model: PagedModel
    tokenizer: Tokenizer
    grammars: Grammars | None
    host: tuple[HostMemory, PageCopier] | None
    namespace: Namespace | None


def _load(config: ServeConfig, spec: ModelSpec) -> _Loaded:
    """The tokenizer first: where something is missing this is known at once."""
    location = locate_tokenizer(config.model, spec.location)
    tokenizer = load_tokenizer(
        location.path,
        trust_remote_code=config.model.trust_remote_code,
        chat_template=config.model.chat_template,
        **location.keywords(),
    )
    grammars = grammars_for(tokenizer, spec)
    model = load(spec, config.cache, config.scheduler, config.tiers, compile=config.model.compile, grammars=grammars)
    for note in start_notes(config.tiers, spec.device.type):
        _log.info("%s", note)
    if not config.tiers.enable_hierarchical_cache:
        return _Loaded(model, tokenizer, grammars, None, None)
    # Without a store too: one may be attached later, and what is cached then has its names already.
    return _Loaded(model, tokenizer, grammars, host_tier(model, config.tiers), namespace_of(spec, config.cache))


def grammars_for(tokenizer: Tokenizer, spec: ModelSpec) -> Grammars | None:
    """What holds this model's answers to a form; None if no token of it ends an answer."""
    eos_token_ids = spec.eos_token_ids | tokenizer.eos_token_ids
    if not eos_token_ids:
        return None
    return Grammars(
        VocabularyFacts(
            tokenizer_json=tokenizer.to_json(),
            vocab_size=max(spec.vocab_size, tokenizer.vocab_size),
            eos_token_ids=tuple(sorted(eos_token_ids)),
        )
    )


def _start_report(info: ModelInfo, tiers: LowerTiers | None, url: str) -> str:
    """What a person wants to see of a server that is ready; the URL stands last, where the eye is."""
    spec, pool = info.spec, info.pool
    threads = f", {torch.get_num_threads()} threads" if spec.device.type == "cpu" else ""
    lines = {
        "model": f"{spec.served_name} ({spec.architecture}), {_gib(spec.weights_bytes)} of weights",
        "files": str(spec.location),
        "device": f"{spec.device}{threads}, {str(spec.dtype).removeprefix('torch.')}",
        "pool": _pool_report(pool.num_pages, info.page_size, pool.num_bytes),
    }
    if tiers is not None:
        lines["host"] = _pool_report(tiers.memory.num_pages, info.page_size, tiers.memory.num_bytes)
    if tiers is not None and tiers.storage is not None:
        lines["store"] = tiers.storage.description
    lines |= {
        "context": f"{info.context_length:,} tokens" + _cut_from(info),
        "URL": f"{url}/v1",
    }
    return "\n".join(f"  {name:8} {value}" for name, value in lines.items())


def _cut_from(info: ModelInfo) -> str:
    """Why a request has to be shorter here than the model allows; nothing where it has not."""
    if info.context_length >= info.spec.context_length:
        return ""
    return (
        f", cut from {info.spec.context_length:,}: the pool holds no more. A larger --mem-fraction-static or "
        "--max-total-tokens, or a smaller host pool, gives it more"
    )


def _pool_report(num_pages: int, page_size: int, num_bytes: int) -> str:
    return f"{num_pages * page_size:,} tokens in {num_pages:,} pages of {page_size}: {_bytes(num_bytes)}"


def _bytes(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes ({_gib(num_bytes)})"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _configure_logging(config: HttpConfig) -> None:
    """Our own log lines at the level asked for; libraries speak up only to warn."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("pagefall").setLevel(config.log_level.upper())


def _leave(status: int) -> None:
    _log.warning("something does not end, most likely a call of the store: the process ends without it")
    os._exit(status)


def _on_signals(shut_down: Callable[[], None]) -> None:
    """From now on Ctrl-C and SIGTERM call `shut_down` on the loop; the second of them ends the process on the spot."""
    loop = asyncio.get_running_loop()

    def on_first(number: int, frame: FrameType | None) -> None:
        _handle_signals(lambda number, frame: os._exit(_INTERRUPTED))
        loop.call_soon_threadsafe(shut_down)

    _handle_signals(on_first)


def _handle_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _crash_in(failure: BaseException) -> ActorCrash | None:
    """The first actor's crash among what a task group raised."""
    if isinstance(failure, ActorCrash):
        return failure
    if isinstance(failure, BaseExceptionGroup):
        return next((crash for part in failure.exceptions if (crash := _crash_in(part)) is not None), None)
    return None
