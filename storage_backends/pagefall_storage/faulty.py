"""A backend that fails as it is told to, around one that works: for tests of what uses a store.

store = Faulty(MemoryBackend())
store.inject(BitFlip(), keys={key})                      # every read of that key
store.inject(Fail("full"), on={"put"}, rate=0.05)        # one write in twenty, the same ones for the same seed
store.inject(Hang(), on={"get"}, times=1)                # the next get never answers, until `heal`
outage = store.inject(Fail())                            # everything fails ...
store.heal()                                             # ... until here
assert outage.num_strikes == 3 and store.num_calls["get"] == 2
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Final, Literal

import msgspec

from pagefall_storage.errors import StorageError
from pagefall_storage.identity import identity_of
from pagefall_storage.protocol import (
    Corrupt,
    Failed,
    GetOutcome,
    Hit,
    Key,
    Miss,
    PutItem,
    PutOutcome,
    StorageBackend,
    StoredValue,
    Usage,
)

Operation = Literal["contains", "get", "put", "delete", "scan", "usage"]
_ALL: Final[frozenset[Operation]] = frozenset({"contains", "get", "put", "delete", "scan", "usage"})


class ShortRead(msgspec.Struct, frozen=True):
    """Half of the value arrives, and the backend notices: `Corrupt("short")`."""


class Torn(msgspec.Struct, frozen=True):
    """Half of the value arrives, then zeros, and the backend does not notice: `Hit`."""


class BitFlip(msgspec.Struct, frozen=True):
    """One bit of the value is wrong, and the backend does not notice: `Hit`. `bit` None: another one each time."""

    bit: int | None = None


class SwapWith(msgspec.Struct, frozen=True):
    """The value is that of the key `other`: whatever reading that one gives."""

    other: Key


class Vanish(msgspec.Struct, frozen=True):
    """The value is gone when it is read, whatever `contains` said: `Miss`."""


class Fail(msgspec.Struct, frozen=True):
    """`Failed` for each key of `get` and `put`, `StorageError` from everything else."""

    kind: Literal["timeout", "full", "error"] = "error"
    reason: str = "injected"


class Hang(msgspec.Struct, frozen=True):
    """The call does not answer until the rule is removed, and is then carried out. It can be cancelled."""


class Slow(msgspec.Struct, frozen=True):
    """The call is carried out after so many seconds."""

    seconds: float


ReadFault = ShortRead | Torn | BitFlip | SwapWith | Vanish
Fault = ReadFault | Fail | Hang | Slow


class Rule:
    """A fault and when it strikes. Made by `Faulty.inject`."""

    def __init__(
        self, fault: Fault, on: Collection[Operation], keys: Collection[Key] | None, rate: float, times: int | None
    ) -> None:
        self.fault = fault
        self.num_strikes = 0
        """How often it has struck: calls for `Hang`, `Slow` and `StorageError`, else values."""
        self.removed = asyncio.Event()
        self._on = on
        self._keys = keys
        self._rate = rate
        self._times = times

    def strikes(self, operation: Operation, keys: Sequence[Key], rng: random.Random) -> bool:
        """Whether it strikes an operation on any of these keys (on none: if it is not for certain keys). Counts."""
        if operation not in self._on or (self._times is not None and self.num_strikes >= self._times):
            return False
        if self._keys is not None and not any(key in self._keys for key in keys):
            return False
        struck = self._rate >= 1 or rng.random() < self._rate
        self.num_strikes += struck
        return struck


class Faulty:
    """`inner`, with faults. Of several rules that fit a value, the one injected first strikes."""

    def __init__(
        self, inner: StorageBackend, *, seed: int = 0, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.inner = inner
        self.num_calls: Counter[Operation] = Counter()
        self._rules: list[Rule] = []
        self._rng = random.Random(seed)
        self._sleep = sleep

    def inject(
        self,
        fault: Fault,
        *,
        on: Collection[Operation] | None = None,
        keys: Collection[Key] | None = None,
        rate: float = 1.0,
        times: int | None = None,
    ) -> Rule:
        """From now on `fault` strikes a share `rate` of the operations `on` these `keys`, at most `times` times.

        `on` None: reads for a fault of the value, else every operation. `keys` None: all.
        """
        if on is None:
            on = {"get"} if isinstance(fault, ReadFault) else _ALL
        rule = Rule(fault, on, keys, rate, times)
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Ends one rule. Raises `ValueError` if it has ended already."""
        self._rules.remove(rule)
        rule.removed.set()

    def heal(self) -> None:
        """Ends all rules: the store has recovered."""
        for rule in list(self._rules):
            self.remove(rule)

    @property
    def description(self) -> str:
        return f"{self.inner.description}, faulty"

    async def contains(self, keys: Sequence[Key]) -> int:
        await self._begin("contains", keys)
        return await self.inner.contains(keys)

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        self.num_calls["get"] += 1
        await self._delay("get", keys)
        drawn = [(self._draw("get", key), key, buffer) for key, buffer in zip(keys, into, strict=True)]
        asked = [(key, buffer) for fault, key, buffer in drawn if not isinstance(fault, Fail)]
        read = iter(await self.inner.get([key for key, _ in asked], [buffer for _, buffer in asked]))
        outcomes: list[GetOutcome] = []
        for fault, _, buffer in drawn:
            if isinstance(fault, Fail):
                outcomes.append(Failed(fault.kind, fault.reason))
            else:
                outcomes.append(await self._spoil(fault, buffer, next(read)))
        return outcomes

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        self.num_calls["put"] += 1
        await self._delay("put", [item.key for item in items])
        drawn = [(self._draw("put", item.key), item) for item in items]
        written = iter(await self.inner.put([item for fault, item in drawn if not isinstance(fault, Fail)]))
        return [Failed(fault.kind, fault.reason) if isinstance(fault, Fail) else next(written) for fault, _ in drawn]

    async def delete(self, keys: Sequence[Key]) -> int:
        await self._begin("delete", keys)
        return await self.inner.delete(keys)

    async def scan(self) -> AsyncIterator[StoredValue]:
        await self._begin("scan", [])
        async for value in self.inner.scan():
            yield value

    async def usage(self) -> Usage:
        await self._begin("usage", [])
        return await self.inner.usage()

    async def identify(self) -> str | None:
        return await identity_of(self.inner)

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def _begin(self, operation: Operation, keys: Sequence[Key]) -> None:
        """What may happen to an operation that succeeds or fails as a whole."""
        self.num_calls[operation] += 1
        await self._delay(operation, keys)
        for rule in self._rules:
            if isinstance(rule.fault, Fail) and rule.strikes(operation, keys, self._rng):
                raise StorageError(rule.fault.reason)

    async def _delay(self, operation: Operation, keys: Sequence[Key]) -> None:
        for rule in list(self._rules):
            if isinstance(rule.fault, Hang) and rule.strikes(operation, keys, self._rng):
                await rule.removed.wait()
            elif isinstance(rule.fault, Slow) and rule.strikes(operation, keys, self._rng):
                await self._sleep(rule.fault.seconds)

    def _draw(self, operation: Operation, key: Key) -> ReadFault | Fail | None:
        for rule in self._rules:
            if not isinstance(rule.fault, Hang | Slow) and rule.strikes(operation, [key], self._rng):
                return rule.fault
        return None

    async def _spoil(self, fault: ReadFault | None, buffer: memoryview, outcome: GetOutcome) -> GetOutcome:
        """`buffer` as the fault leaves it. A value that was not read cannot be damaged."""
        match fault:
            case SwapWith(other):
                return (await self.inner.get([other], [buffer]))[0]
            case Vanish():
                buffer[:] = bytes(buffer.nbytes)
                return Miss()
            case ShortRead() | Torn() if isinstance(outcome, Hit):
                half = buffer.nbytes // 2
                buffer[half:] = bytes(buffer.nbytes - half)
                return Corrupt("short") if isinstance(fault, ShortRead) else outcome
            case BitFlip(bit) if isinstance(outcome, Hit):
                at = self._rng.randrange(buffer.nbytes * 8) if bit is None else bit
                buffer[at // 8] ^= 1 << at % 8
        return outcome
