"""Which servers a benchmark asks: running ones, by their URL, or ones that it starts itself, one after the other."""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import msgspec

from pagefall.bench.client import CompletionClient, connect
from pagefall.bench.server_process import served
from pagefall.bench.transfers import settled
from pagefall.errors import ConfigError

_WARM_UP_TOKENS: Final = 512
_WARM_UP_OUTPUT_TOKENS: Final = 4


class ServersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Either `url`, and `peer_url` to compare with, or `serve` and `against`: flags of `pagefall serve`, as text."""

    url: str | None = None
    peer_url: str | None = None
    model: str | None = None
    peer_model: str | None = None
    api_key: str | None = None
    serve: str | None = None
    against: str | None = None
    restart: bool = False


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody else's process. `model` None: the first that it lists."""

    label: str
    url: str
    model: str | None = None
    api_key: str | None = None

    def __str__(self) -> str:
        return self.url


class OwnServer(msgspec.Struct, frozen=True, kw_only=True):
    """A `pagefall serve` for the time of one run. With `restarts`, the label of a target before it, it has the store
    of that one and finds there what that one left.
    """

    label: str
    flags: tuple[str, ...]
    restarts: str | None = None

    def __str__(self) -> str:
        return shlex.join(["pagefall", "serve", *self.flags])


Target = RunningServer | OwnServer


def targets(config: ServersConfig, *, serve: str, against: str) -> tuple[Target, ...]:
    """What to ask, in order. `serve` and `against` stand in when neither servers nor flags are given.

    The last one is what the others are compared with. Raises `ConfigError` for a contradiction.
    """
    if config.url is None:
        for flag, value in (("peer-url", config.peer_url), ("model", config.model), ("peer-model", config.peer_model)):
            if value is not None:
                raise ConfigError(f"--{flag}: needs --url")
        return _own_targets(config, serve, against)
    for flag, given in (("serve", config.serve), ("against", config.against), ("restart", config.restart)):
        if given:
            raise ConfigError(f"--{flag}: starts servers, so it does not go with --url")
    if config.peer_model is not None and config.peer_url is None:
        raise ConfigError("--peer-model: needs --peer-url")
    self = RunningServer(label="self", url=config.url, model=config.model, api_key=config.api_key)
    if config.peer_url is None:
        return (self,)
    return self, RunningServer(label="peer", url=config.peer_url, model=config.peer_model, api_key=config.api_key)


def _own_targets(config: ServersConfig, serve: str, against: str) -> tuple[Target, ...]:
    flags = split_flags("serve", config.serve or serve)
    found: list[Target] = [OwnServer(label="serve", flags=flags)]
    if config.restart:
        found.append(OwnServer(label="restarted", flags=flags, restarts="serve"))
    # Flags of one's own are compared with other flags of one's own, or with nothing.
    if config.against is not None or config.serve is None:
        found.append(OwnServer(label="against", flags=split_flags("against", config.against or against)))
    return tuple(found)


def split_flags(flag: str, text: str) -> tuple[str, ...]:
    """`text`, the value of `flag`, in words as a shell makes them. Raises `ConfigError` for a quotation left open."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--{flag}: {error}") from None


@asynccontextmanager
async def open_client(target: Target, rng: random.Random, *, stores: Path) -> AsyncIterator[CompletionClient]:
    """A client of the target, which is ready and has answered a first request that is no part of any figure.

    A server of our own is started before and ended afterwards, when nothing moves between its tiers any more. A file
    store whose path its flags do not say is a folder in `stores` for it alone: what another run stored would pass for
    its own. Raises `PagefallError` when it cannot be used.
    """
    match target:
        case RunningServer():
            async with open_url(target.url, rng, model=target.model, api_key=target.api_key) as client:
                yield client
        case OwnServer():
            sys.stderr.write(f"{target.label}: {target}\n")
            environ = {"PAGEFALL_STORAGE_DIR": str(stores / (target.restarts or target.label))}
            async with served(target.flags, environ) as url, open_url(url, rng) as client:
                yield client
                await settled(client.http)


@asynccontextmanager
async def open_url(
    url: str, rng: random.Random, *, model: str | None = None, api_key: str | None = None
) -> AsyncIterator[CompletionClient]:
    """A client of the server at `url`, with or without `/v1`, that has answered a first request."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers=headers,
        timeout=httpx.Timeout(600, connect=10),
        limits=httpx.Limits(),
    ) as http:
        client = await connect(http, model=model, rng=rng)
        await client.stream(client.prompts.make(_WARM_UP_TOKENS), max_tokens=_WARM_UP_OUTPUT_TOKENS)
        yield client
