"""The composition root: what there is, who knows whom, and in which order it starts and ends.

HTTP (api) --> TokenizerActor --> Scheduler --> ModelRunner (one thread: the model)
^                |
+----------------+
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Final

import torch

from pagefall.actors.base import ActorCrash
from pagefall.actors.encoding import PromptEncoder
from pagefall.actors.mailbox import Mailbox
from pagefall.actors.runner import DeviceThread, Model, ModelRunner
from pagefall.actors.scheduler import Scheduler
from pagefall.actors.tokenizer import TokenizerActor, scheduler_mailbox_capacity
from pagefall.api.app import create_app
from pagefall.api.server import HttpServer, bind
from pagefall.config import CacheConfig, HttpConfig, SchedulerConfig, ServeConfig
from pagefall.messages import FromScheduler, ToScheduler
from pagefall.model.engine import ModelInfo, PagedModel, load
from pagefall.model.location import locate_tokenizer
from pagefall.model.prepare import prepare
from pagefall.scheduling.state import SchedulerState
from pagefall.text.requests import ModelCard
from pagefall.text.tokenizer import Tokenizer, load_tokenizer

_log = logging.getLogger("pagefall.app")

_TOKENIZER_MAILBOX_CAPACITY: Final = 1024
"""Messages of the scheduler that may wait for the tokenizer; beyond that the scheduler waits."""

_INTERRUPTED: Final = 130


def serve(config: ServeConfig) -> int:
    """Serves until a signal ends it, and returns the exit status: 0 after a drain, 1 after a crash.

    Raises `ConfigError` or `ModelError`, one line each, before the port is open.
    """
    _configure_logging(config.http)
    # A port that is taken is found before a minute of loading, not after.
    with bind(config.http) as bound, DeviceThread() as thread:
        model, tokenizer = thread.call(_load, config)
        try:
            asyncio.run(_serve(config, model, tokenizer, bound, thread))
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
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[TokenizerActor]:
    """The engine without HTTP: an `api.engine.Engine`. Leaving it serves what was accepted to its end.

    The model was loaded in `thread`, which outlives the engine.

    Raises `ExceptionGroup` with an `ActorCrash` in it when an actor has failed; the body is cancelled then.
    """
    max_outstanding = scheduler.max_running_requests + scheduler.max_queued_requests
    to_scheduler = Mailbox[ToScheduler](scheduler_mailbox_capacity(max_outstanding))
    to_tokenizer = Mailbox[FromScheduler](_TOKENIZER_MAILBOX_CAPACITY)
    state = SchedulerState(
        scheduler=scheduler,
        cache=cache,
        page_size=cache.page_size,
        num_pages=num_pages,
        namespace=b"",  # device pages never leave this process, which serves one model
    )
    with PromptEncoder(tokenizer, max_waiting=max_outstanding) as encoder:
        runner = ModelRunner(model, thread)
        decider = Scheduler(to_scheduler, to_tokenizer.address, runner, state, clock=clock)
        engine = TokenizerActor(
            to_tokenizer,
            to_scheduler.address,
            tokenizer,
            encoder,
            model=card,
            eos_token_ids=eos_token_ids,
            max_outstanding=max_outstanding,
            stats=decider.stats,
        )
        async with asyncio.TaskGroup() as actors:
            actors.create_task(engine.run(), name="tokenizer")
            deciding = actors.create_task(decider.run(), name="scheduler")
            yield engine
            # From the head: no new requests, then the scheduler's last words, then whoever listens to them.
            await engine.drain()
            decider.close()
            await deciding
            engine.close()


async def _serve(
    config: ServeConfig, model: PagedModel, tokenizer: Tokenizer, bound: socket.socket, thread: DeviceThread
) -> None:
    info = model.info
    card = ModelCard(
        id=info.spec.served_name,
        context_length=info.context_length,
        vocab_size=info.spec.vocab_size,
        created=int(time.time()),
        root=config.model.model_path,
    )
    async with running_engine(
        model,
        tokenizer,
        card,
        thread=thread,
        num_pages=info.pool.num_pages,
        eos_token_ids=info.spec.eos_token_ids | tokenizer.eos_token_ids,
        cache=config.cache,
        scheduler=config.scheduler,
    ) as engine:
        server = HttpServer(
            create_app(engine, config.http),
            config.http,
            bound,
            on_ready=lambda url: _log.info("ready\n%s", _start_report(info, url)),
        )

        def shut_down() -> None:
            _log.info("shutting down; requests under way: %d; once more to end at once", engine.num_outstanding)
            engine.stop_accepting()
            server.should_exit = True
            asyncio.get_running_loop().call_later(config.http.shutdown_grace_seconds, engine.abort_all)

        _on_signals(shut_down)
        await server.run_until_exit()


def _load(config: ServeConfig) -> tuple[PagedModel, Tokenizer]:
    """The tokenizer first: where something is missing this is known at once."""
    spec = prepare(config.model)
    location = locate_tokenizer(config.model, spec.location)
    tokenizer = load_tokenizer(
        location.path,
        trust_remote_code=config.model.trust_remote_code,
        chat_template=config.model.chat_template,
        **location.keywords(),
    )
    return load(spec, config.cache, config.scheduler, config.tiers, compile=config.model.compile), tokenizer


def _start_report(info: ModelInfo, url: str) -> str:
    """What a person wants to see of a server that is ready; the URL stands last, where the eye is."""
    spec, pool = info.spec, info.pool
    threads = f", {torch.get_num_threads()} threads" if spec.device.type == "cpu" else ""
    lines = {
        "model": f"{spec.served_name} ({spec.architecture}), {_gib(spec.weights_bytes)} of weights",
        "files": str(spec.location),
        "device": f"{spec.device}{threads}, {str(spec.dtype).removeprefix('torch.')}",
        "pool": f"{pool.num_tokens:,} tokens in {pool.num_pages:,} pages of {info.page_size}: {_bytes(pool.num_bytes)}",
        "context": f"{info.context_length:,} tokens",
        "URL": f"{url}/v1",
    }
    return "\n".join(f"  {name:8} {value}" for name, value in lines.items())


def _bytes(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes ({_gib(num_bytes)})"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _configure_logging(config: HttpConfig) -> None:
    """Our own log lines at the level asked for; libraries speak up only to warn."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("pagefall").setLevel(config.log_level.upper())


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
