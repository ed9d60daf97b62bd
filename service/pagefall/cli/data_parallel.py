"""`pagefall serve --dp-size N`: the command lines of N workers, and the router before them."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import takewhile
from pathlib import Path
from typing import Final

from pagefall.config import ServeConfig
from pagefall.errors import first_failure
from pagefall.router.app import Router
from pagefall.router.config import RouterConfig, RoutingConfig, TellingConfig, WorkersConfig
from pagefall.router.replicas import ReplicaError, Replicas
from pagefall.router.serve import LoadedEncoder, serve

_OURS: Final = ("--dp-size", "--load-balance-method", "--host", "--port", "--api-key", "--admin-api-key")
"""Flags with a value that are the router's, not the workers'."""

_GPU_FRACTION: Final = 0.88
_SHARED_FRACTION: Final = 0.30
"""Of the memory that is free, for the pools: the defaults of `model.memory`, which is not imported as it needs torch.
The second is of memory that is also everybody else's.
"""


def serve_data_parallel(
    argv: Sequence[str],
    config: ServeConfig,
    environ: Mapping[str, str],
    load_encoder: Callable[[RoutingConfig], LoadedEncoder | None],
) -> int:
    """Serves until a signal ends it; returns the exit status. `config` is what `argv` and `environ` say.

    `load_encoder` is the router's (`cli.router_tokenizer`). Raises `PagefallError` where a worker cannot be started
    with these flags.
    """
    key = secrets.token_urlsafe(24)  # only the router talks to the workers
    model = config.model
    router_config = RouterConfig(
        workers=WorkersConfig(worker_api_key=key, health_interval=1.0),
        routing=RoutingConfig(
            policy=config.parallel.load_balance_method,
            model_path=model.model_path,
            tokenizer_path=model.tokenizer_path,
            served_model_name=model.served_model_name,
            revision=model.revision,
            trust_remote_code=model.trust_remote_code,
            chat_template=model.chat_template,
        ),
        http=config.http,
        telling=TellingConfig(explain_max_requests=config.insight.explain_max_requests),
        owns_workers=True,
    )

    def command(number: int, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        return worker_command(argv, environ, config, number, port), worker_environ(environ, config, number, key)

    def beside(router: Router) -> AbstractAsyncContextManager[None]:
        return Replicas(
            router.registry,
            command,
            count=config.parallel.dp_size,
            grace_seconds=config.http.shutdown_grace_seconds,
        ).running()

    try:
        return serve(router_config, load_encoder, beside=beside)
    except BaseExceptionGroup as failures:
        failure = failures.subgroup(ReplicaError)
        if failure is None:
            raise
        raise first_failure(failure) from None


def worker_command(
    argv: Sequence[str], environ: Mapping[str, str], config: ServeConfig, number: int, port: int
) -> list[str]:
    """The command line of worker `number`: what the user wrote, but for what is the router's.

    Workers that share a device take their part each of the share of its memory.
    """
    flags: list[str] = []
    is_value = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if is_value or name in _OURS:
            is_value = not is_value and name in _OURS and not equals
            continue
        flags.append(argument)
    flags += ["--dp-size", "1", "--host", "127.0.0.1", "--port", str(port)]
    gpus = _gpus(environ, config)
    num_sharing = _num_sharing(number, config.parallel.dp_size, len(gpus))
    if num_sharing > 1 and config.cache.max_total_tokens is None:
        fraction = config.cache.mem_fraction_static or (_GPU_FRACTION if gpus else _SHARED_FRACTION)
        flags += ["--mem-fraction-static", f"{fraction / num_sharing:.4f}"]
    return [sys.executable, "-m", "pagefall", "serve", *flags]


def worker_environ(environ: Mapping[str, str], config: ServeConfig, number: int, key: str) -> dict[str, str]:
    """Its environment: the key that the router sends, and its part of the machine's cores or GPUs."""
    mine = {**environ, "PAGEFALL_API_KEY": key, "PAGEFALL_ADMIN_API_KEY": key, "PYTHONUNBUFFERED": "1"}
    if gpus := _gpus(environ, config):
        mine["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    if "OMP_NUM_THREADS" not in environ:
        mine["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // config.parallel.dp_size))
    return mine


def _gpus(environ: Mapping[str, str], config: ServeConfig) -> list[str]:
    """The GPUs that the workers are dealt, by CUDA's names for them; none where they run on something else."""
    if config.model.device not in ("auto", "cuda"):
        return []
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(gpu) for gpu in range(_num_gpus())]
    names = [name.strip() for name in visible.split(",")]
    return list(takewhile(lambda name: name not in ("", "-1"), names))  # as CUDA reads it


def _num_sharing(number: int, num_workers: int, num_gpus: int) -> int:
    """How many workers have the device of worker `number`, itself included. Without GPUs all share one memory."""
    return len(range(number % num_gpus, num_workers, num_gpus)) if num_gpus else num_workers


def _num_gpus() -> int:
    """NVIDIA's, as Linux shows them; asking torch would take seconds and a context on each."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
