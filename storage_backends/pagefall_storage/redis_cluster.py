"""The nodes of a Redis Cluster, and who has which slots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from redis.crc import key_slot

from pagefall_storage.redis_commands import command
from pagefall_storage.redis_config import Address, ClusterTarget, RedisSettings
from pagefall_storage.redis_replies import ReplyError
from pagefall_storage.redis_servers import RedisUnavailableError, Server, node

_NUM_SLOTS: Final = 16384


class Cluster:
    """Knows the primaries of a cluster, and asks again who they are after one was gone or sent us elsewhere.

    What a server refuses because a slot has moved stays refused: the next call goes to the right one.
    """

    def __init__(self, settings: RedisSettings, target: ClusterTarget) -> None:
        self._settings = settings
        self._seeds = target.nodes
        self._nodes: dict[Address, Server] = {}
        self._slots: list[Address | None] = [None] * _NUM_SLOTS
        self._is_known = False
        self._turn = 0
        self._asking = asyncio.Lock()

    async def group(self, names: Sequence[bytes]) -> list[tuple[Server, list[int]]]:
        await self._learn()
        groups: dict[Address, list[int]] = {}
        for index, name in enumerate(names):
            address = self._slots[key_slot(name)]
            if address is None:
                self._doubt()
                raise RedisUnavailableError("error", f"no node has the slot {key_slot(name)}")
            groups.setdefault(address, []).append(index)
        return [(self._node(address), indices) for address, indices in groups.items()]

    async def all(self) -> Sequence[Server]:
        await self._learn()
        return [self._node(address) for address in dict.fromkeys(self._slots) if address is not None]

    async def aclose(self) -> None:
        for server in self._nodes.values():
            await server.aclose()

    async def _learn(self) -> None:
        async with self._asking:
            if self._is_known:
                return
            addresses = list(dict.fromkeys((*self._seeds, *self._nodes)))
            error: RedisUnavailableError | None = None
            for _ in addresses:
                address = addresses[self._turn % len(addresses)]
                self._turn += 1  # before it is asked: if it keeps us until we are cancelled, the next one is next
                try:
                    self._slots = await self._ask(address)
                except RedisUnavailableError as its_error:
                    error = its_error
                else:
                    self._turn -= 1
                    self._is_known = True
                    return
            raise error or RedisUnavailableError("error", "the cluster has no nodes")

    async def _ask(self, address: Address) -> list[Address | None]:
        """The address of the primary of each slot, as this node knows it."""
        try:
            async with asyncio.timeout(self._settings.config.connect_timeout_seconds):
                (reply,) = await self._node(address).call([command(b"CLUSTER", b"SLOTS")])
        except TimeoutError as error:
            raise RedisUnavailableError("timeout", f"{address}: no answer to CLUSTER SLOTS") from error
        if isinstance(reply, ReplyError):
            raise RedisUnavailableError("error", f"{address}: {reply}")
        slots: list[Address | None] = [None] * _NUM_SLOTS
        assert isinstance(reply, list)
        for first, last, (host, port, *_), *_ in reply:
            primary = Address(host.decode() if host else address.host, port)  # no host: the one we asked at
            slots[first : last + 1] = [primary] * (last + 1 - first)
        return slots

    def _node(self, address: Address) -> Server:
        if address not in self._nodes:
            self._nodes[address] = node(self._settings, address, on_doubt=self._doubt)
        return self._nodes[address]

    def _doubt(self) -> None:
        self._is_known = False
