"""The store that a name stands for: one, or several stacked, each of those behind its own deadline and breaker.

A stack as a whole stands behind the client's guard like any store, with the deadline that the user gave. So that one
operation has time for every member, each gets its share of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.guarded_member import GuardedMember
from pagefall.tiers.guarded_store import GuardedStore
from pagefall.tiers.late_store import LateStore
from pagefall.tiers.values import check_value
from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.registry import member_configs, open_backend
from pagefall_storage.stacked import Stacked

_log = logging.getLogger("pagefall.tiers")


async def open_guarded(
    name: str, extra_config: Mapping[str, object], *, value_bytes: int, deadline_seconds: float
) -> StorageBackend:
    """The store `name`, open. A member of a stack that is down now is used as soon as it can be opened.

    Raises `StorageConfigError`, and `StorageError` where the store, or every member of the stack, is down.
    """
    members = member_configs(name, extra_config)
    if len(members) == 1:
        return await open_backend(name, extra_config, value_bytes=value_bytes)
    stores = [LateStore(each, partial(open_backend, each, its, value_bytes=value_bytes)) for each, its in members]
    errors = []
    try:
        for store in stores:
            try:
                await store.opened()
            except StorageError as error:
                errors.append(error)
                _log.warning("one of the stacked stores is used as soon as it can be: %s: %s", store.description, error)
        if len(errors) == len(stores):
            raise errors[0]
    except BaseException:
        for store in stores:
            await store.aclose()
        raise
    return guarded_stack(stores, deadline_seconds=deadline_seconds, value_bytes=value_bytes, clock=time.monotonic)


def guarded_stack(
    members: Sequence[StorageBackend], *, deadline_seconds: float, value_bytes: int, clock: Callable[[], float]
) -> Stacked:
    """The stack of `members`, whose operations take `deadline_seconds` at most unless one lets go of no memory."""
    guarded = [
        GuardedMember(
            GuardedStore(
                member,
                CircuitBreaker(),
                deadline_seconds=deadline_seconds / len(members),
                value_bytes=value_bytes,
                clock=clock,
            )
        )
        for member in members
    ]
    return Stacked(guarded, verify=check_value)
